"""A stage that a person can watch: a step every few tenths of a second, a checkpoint every ten, resumable."""

import time

import bridgehead

run = bridgehead.current_run()
saved = run.latest_checkpoint()
first = saved.step + 1 if saved else 1
steps = int(run.config.get("steps", 200))
pace_s = float(run.config.get("pace_s", 0.2))
print(f"begins at step {first}", flush=True)
for step in range(first, steps + 1):
    print(f"step {step} of {steps} loss {1 / step:.4f}", flush=True)
    run.progress(step=step, total_steps=steps, loss=1 / step)
    if step % 10 == 0 or run.should_stop:
        with run.checkpoint(step) as folder:
            (folder / "state.txt").write_text(str(step))
    if run.should_stop:
        run.exit_stopped()
    time.sleep(pace_s)
run.results({"loss": 1 / steps})
