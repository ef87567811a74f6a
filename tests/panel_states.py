"""States of the panel as the model would tell them: what the view's tests and its screenshots show."""

from __future__ import annotations

import copy
from typing import Any

from panel_parts import GIB, NOW, artifact, curve, level, line, log, queue, run, vm

State = dict[str, Any]
STAGES = [
    {"name": "pretrain", "after": [], "command": "bridgehead:pretrain"},
    {"name": "finetune", "after": ["pretrain"], "command": "bridgehead:finetune"},
    {"name": "gate", "after": ["finetune"], "command": "bridgehead:gate"},
    {"name": "export", "after": ["gate"], "command": "bridgehead:export"},
]


def empty(**more: Any) -> State:
    """Nothing was ever paired."""
    return {
        "gen": "g1",
        "seq": 10,
        "t": NOW,
        "project": "watch-gestures",
        "bridge": {"state": "up", "url": "", "tunnel": "cloudflare", "trouble": ""},
        "vms": [],
        "runs": [],
        "series": {},
        "log": [],
        "log_first": 1,
        "queue": [],
        "artifacts": [],
        "cost": None,
        "alerts": [],
        "stages": STAGES,
        "can": {"sh": True},
        "next": {
            "text": "No VM is paired. Make the cell, paste it into a notebook with a GPU, run it.",
            "action": "pair",
        },
        **more,
    }


def paired() -> State:
    """A VM and no run."""
    text = "colab-a is ready. Choose a stage and look at its plan before it is sent."
    return empty(vms=[vm("colab-a", up_s=95.0)], next={"text": text, "action": "run pretrain"})


def overnight() -> State:
    """The middle of a good night: one VM at work, one that was lost and whose run went on elsewhere."""
    runs = [
        run(
            "pretrain-01",
            state="done",
            step=40_000,
            total_steps=40_000,
            metrics={"loss": 0.312},
            exit_code=0,
            order=1,
            checkpoint={"local": level(40_000, 9100), "mounted": level(40_000, 9090), "confirmed": level(40_000, 9060)},
        ),
        run(
            "finetune-02",
            state="done",
            step=60_000,
            total_steps=60_000,
            metrics={"loss": 0.231, "accuracy": 0.941},
            verdict="champion",
            exit_code=0,
            order=2,
            checkpoint={"local": level(60_000, 8000), "mounted": level(60_000, 8000), "confirmed": level(60_000, 7990)},
        ),
        run(
            "finetune-03",
            step=41_210,
            total_steps=60_000,
            epoch=7,
            total_epochs=10,
            rate_per_s=3.12,
            eta_s=[5780.0, 6420.0],
            metrics={"loss": 0.2143, "accuracy": 0.9467, "lr": 0.00021},
            attempt=2,
            resumed=[[2, 22_000]],
            order=3,
            log_bytes=48_211_004,
            checkpoint={"local": level(41_200, 12), "mounted": level(41_000, 75), "confirmed": level(40_500, 240)},
            at_risk={"seconds": 228.0, "steps": 710, "level": "confirmed"},
            bar="epoch 7: 69%|██████████▍    | 4121/6000 [22:01<10:02, 3.12it/s]",
        ),
        run(
            "probe-07",
            "probe",
            vm="kaggle-b",
            step=1820,
            total_steps=4000,
            rate_per_s=1.4,
            eta_s=[1500.0, 1600.0],
            metrics={"loss": 1.07},
            order=4,
            checkpoint={"local": level(1800, 14), "mounted": None, "confirmed": None},
            at_risk={"seconds": None, "steps": 1820, "level": ""},
        ),
        run("gate-02", "gate", vm="", state="queued", waits_for="waits for finetune-03", order=5),
        run("export-02", "export", vm="", state="queued", waits_for="waits for gate-02", order=6),
    ]
    series = {
        "finetune-02": {
            "loss": curve(1.9, 0.231, 60_000),
            "accuracy": [[s, 0.95 - y * 0.25] for s, y in curve(1.9, 0.05, 60_000)],
        },
        "finetune-03": {
            "loss": curve(1.8, 0.2143, 41_210, points=210),
            "accuracy": [[s, 0.957 - y * 0.26] for s, y in curve(1.8, 0.04, 41_210)],
        },
        "probe-07": {"loss": curve(2.4, 1.07, 1820, points=60)},
    }
    vms = [
        vm("colab-a"),
        vm(
            "kaggle-b",
            accelerator="2 × T4 16 GB",
            up_s=5_400.0,
            cap_s=43_200.0,
            order=2,
            seen_at=NOW - 3.1,
            gauges={
                "gpu": {"use": 0.61},
                "gpu_memory": {"used": 9.4 * GIB, "total": 32 * GIB},
                "ram": {"used": 9 * GIB, "total": 31 * GIB},
                "disk": {"used": 18 * GIB, "total": 73 * GIB},
                "store": {"used": 14.2 * GIB, "total": 15 * GIB},
            },
        ),
        vm(
            "colab-z",
            state="lost",
            up_s=20_100.0,
            seen_at=NOW - 8040,
            order=3,
            kept_alive_by="",
            note="finetune-03 went on at colab-a",
        ),
    ]
    artifacts = [
        artifact("finetune-02", "bundle/", 96.4e6, "bundle", note="all 14 files verified"),
        artifact("pretrain-01", "artifacts/encoder.pt", 88.1e6, "encoder", t=NOW - 9000),
        artifact("finetune-02", "results.json", 2_310, "results", t=NOW - 7900),
        artifact("finetune-03", "artifacts/classifier.pt", 41e6, "other", hash_state="arriving", t=NOW - 20),
    ]
    queued = [
        queue(11, "run:pretrain epochs=20", exit_code=0, run="pretrain-01"),
        queue(12, "run:finetune", exit_code=0, run="finetune-02"),
        queue(13, "sh: nvidia-smi --query-gpu=name,memory.used --format=csv", exit_code=0),
        queue(14, "run:finetune lr=2.1e-4 warmup=500", "started", run="finetune-03"),
        queue(15, "run:prboe", "rejected", why="no stage prboe: did you mean probe?"),
        queue(16, "@kaggle-b run:probe", "started", run="probe-07"),
        queue(17, "run:gate", "waiting", why="waits for finetune-03"),
        queue(18, "run:export", "waiting", why="waits for gate"),
    ]
    alerts = [
        {
            "key": "store-full:kaggle-b",
            "level": "warn",
            "text": "The store is nearly full on kaggle-b: 0.8 GiB are left.",
            "next": "empty Drive's trash, or set [store] keep = 2",
            "t": NOW - 260,
        },
    ]
    return empty(
        vms=vms,
        runs=runs,
        series=series,
        log=log(400),
        queue=queued,
        artifacts=artifacts,
        alerts=alerts,
        next={"text": "", "action": ""},
    )


def failed() -> State:
    """Out of memory: why, and what to do."""
    state = overnight()
    state["runs"][2] |= {
        "state": "failed",
        "failure": "out of GPU memory",
        "exit_code": 1,
        "eta_s": None,
        "rate_per_s": None,
        "at_risk": None,
        "bar": "",
        "reason": "CUDA tried to allocate 2.4 GiB with 1.1 GiB free",
        "next": "bridgehead resume finetune-03 batch=192",
    }
    state["alerts"] = [
        {
            "key": "failed:finetune-03",
            "level": "bad",
            "text": "finetune-03 failed: out of GPU memory.",
            "next": "resume it with a smaller batch",
            "t": NOW - 90,
        }
    ]
    state["log"] += [
        line(401, "Traceback (most recent call last):", "stderr"),
        line(402, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.40 GiB", "error"),
    ]
    return state


def troubled() -> State:
    """The mount is dead, the balance runs low, a VM was lost: all that needs a person at once."""
    state = overnight()
    state["alerts"] = [
        {
            "key": "store:colab-a",
            "level": "bad",
            "text": "Drive is unmounted on colab-a. Training goes on and checkpoints stay local.",
            "next": "run the boot cell again",
            "t": NOW - 240,
        },
        {
            "key": "cost",
            "level": "warn",
            "text": "At this rate the balance ends before finetune-03 does.",
            "next": "top up, or stop probe-07",
            "t": NOW - 1260,
        },
        {
            "key": "unconfirmed:finetune-03",
            "level": "warn",
            "text": "No checkpoint of finetune-03 was confirmed for 34 min.",
            "next": "bridgehead doctor",
            "t": NOW - 300,
        },
    ]
    state["cost"] = {
        "balance": 21.4,
        "unit": "CU",
        "burn_per_h": 11.8,
        "spent": 61.0,
        "finish": [19.0, 24.0],
        "dry_at": NOW + 6_480,
        "as_of": NOW - 400,
    }
    state["runs"][2] |= {
        "at_risk": {"seconds": 2040.0, "steps": 6400, "level": "confirmed"},
        "checkpoint": {"local": level(41_200, 12), "mounted": None, "confirmed": level(34_800, 2040)},
    }
    state["vms"][0]["gauges"].pop("store")
    state["vms"][0]["image_drift"] = "torch 2.9.1 is now 2.10.0"
    return state


def crowded() -> State:
    """5 VMs, 20 runs, 2,000 lines of 10,000."""
    state = overnight()
    words = ["running", "saving", "resuming", "queued", "done", "failed", "stopped", "lost", "starting", "running"]
    for n in range(4, 6):
        state["vms"].append(
            vm(
                f"colab-{n}",
                order=n,
                accelerator="L4 24 GB",
                state="silent" if n == 5 else "live",
                seen_at=NOW - n * 12,
            )
        )
    for n in range(7, 21):
        word = words[n % len(words)]
        state["runs"].append(
            run(
                f"sweep-lr-{n:02d}",
                "sweep",
                state=word,
                step=n * 900,
                total_steps=20_000,
                order=n,
                vm=f"colab-{n % 2 + 4}",
                metrics={"loss": 0.9 / n},
                failure="stage ended with code 137" if word == "failed" else "",
                eta_s=[3000.0 + 400 * n, 3300.0 + 500 * n] if word == "running" else None,
                checkpoint={
                    "local": level(n * 890, 30),
                    "mounted": level(n * 850, 90) if n % 3 else None,
                    "confirmed": None,
                },
                at_risk={"seconds": 60.0 * n, "steps": 100, "level": "mounted"},
            )
        )
        state["series"][f"sweep-lr-{n:02d}"] = {"loss": curve(2, 0.9 / n, n * 900)}
    state["log"] = log(2000, first=8001)
    return state


HOSTILE = [
    '<img src=x onerror="window.pwned=1"> <script>window.pwned=2</script> <b>bold</b>',
    "javascript:window.pwned=3 https://evil.example/?stop:finetune-03 [click](javascript:alert(1))",
    "${window.pwned=4} {{constructor.constructor('window.pwned=5')()}} &lt;i&gt; &amp; %3Cscript%3E",
    "right to left: שלום \u0645\u0631\u062d\u0628\u0627 and emoji 🚀👩‍🚀 and z̸̢̛a̷l̶g̵o̸",
    "x" * 2000,
    "",
    "   indented\twith a tab",
]


def hostile() -> State:
    """Log lines, names, alerts and queue lines that try to be markup."""
    state = overnight()
    state["log"] = [line(n + 1, text) for n, text in enumerate(HOSTILE)]
    evil = HOSTILE[0]
    state["runs"][2] |= {"failure": evil, "next": evil, "bar": evil, "metrics": {evil: 1.0}}
    state["series"]["finetune-03"] = {evil: curve(1, 0, 100)}
    state["vms"][0] |= {"accelerator": evil, "note": evil}
    state["alerts"] = [{"key": "x", "level": "bad", "text": evil, "next": evil, "t": NOW}]
    state["queue"][0]["line"] = state["queue"][0]["why"] = evil
    state["artifacts"][0]["path"] = evil
    return state


ALL = {
    "empty": empty,
    "paired": paired,
    "overnight": overnight,
    "failed": failed,
    "troubled": troubled,
    "crowded": crowded,
    "hostile": hostile,
}


def state(name: str) -> State:
    """A fresh copy of one of ALL."""
    return copy.deepcopy(ALL[name]())
