"""What a log may hold that would harm a reader, if it were more than text to him."""

import sys
import time

import bridgehead

run = bridgehead.current_run()
for line in (
    "HOSTILE-BEGIN",
    "<img src=x onerror=\"window.pwned='img'\"><script>window.pwned='script'</script>",
    "<a href=\"javascript:window.pwned='link'\">press me</a>",
    "\x1b[2J\x1b[1;31mred?\x1b[0m \x1b]8;;https://evil.example\x07link\x1b]8;;\x07 \x1b]0;title\x07",
    "abc\u202edlrow\u2066 \u200f\x00\x08\x7f end",
    "L" * 6000,
    "emoji \U0001f4a5 and \u0645\u0631\u062d\u0628\u0627",
):
    print(line, flush=True)
for part in range(0, 101, 5):
    print(f"\rbar {part}%", end="", flush=True)
    time.sleep(0.02)
print(flush=True)
print("HOSTILE-STDERR", file=sys.stderr, flush=True)
print("HOSTILE-END", flush=True)
run.results({"ok": 1.0})
