"""The view in a real browser, fed by hand: what it folds, what it sends, and what it never does."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="the extra `dev` is not installed: no Playwright")

from playwright.sync_api import Browser, Page, expect

import panel_page as pages
import panel_parts
import panel_states
from panel_page import choose, inside, patch
from panel_parts import NOW

LINE = "step=40400"  # the last one of `overnight`


# --- what it folds ---------------------------------------------------------------------------------


def test_a_patch_changes_what_it_names_and_nothing_else(night: Page) -> None:
    run = {**panel_states.state("overnight")["runs"][2], "step": 48_000}
    pages.feed(night, patch(runs=[run], lines=[panel_parts.line(401, "a new line")]))
    expect(night.get_by_test_id("run-finetune-03")).to_contain_text("80 %")
    expect(night.get_by_test_id("run-probe-07")).to_contain_text("45 %")
    expect(night.get_by_test_id("log")).to_contain_text("a new line")
    expect(night.get_by_test_id("vm-colab-a")).to_contain_text("97 %")


def test_a_replayed_patch_adds_nothing(night: Page) -> None:
    told = patch(lines=[panel_parts.line(401, "only once")])
    for _ in range(3):
        pages.feed(night, told)
    expect(night.get_by_test_id("log-count")).to_have_text("401 lines")


def test_a_gap_asks_for_a_snapshot(night: Page) -> None:
    before = len(pages.sent(night, "hello"))
    night.wait_for_timeout(1100)  # hellos come once a second at most
    night.evaluate("s => { kernel.snapshot = s }", {**panel_states.state("failed"), "seq": 99})
    pages.feed(night, patch(since=50, seq=51))
    expect(night.get_by_test_id("state-finetune-03")).to_have_text("failed")
    hellos = pages.sent(night, "hello")
    assert len(hellos) == before + 1
    assert hellos[-1]["have"] == {"gen": "g1", "seq": 10}


def test_another_life_of_the_model_replaces_everything(night: Page) -> None:
    night.evaluate("s => { kernel.snapshot = s }", {**panel_states.state("paired"), "gen": "g2", "seq": 1})
    night.wait_for_timeout(1100)
    pages.feed(night, patch(gen="g2", since=0, seq=1))
    expect(night.get_by_test_id("next")).to_contain_text("colab-a is ready")
    expect(night.get_by_test_id("log-count")).to_have_text("0 lines")


def test_runs_and_vms_that_went_are_gone(night: Page) -> None:
    pages.feed(night, patch(gone={"vms": ["colab-z"], "runs": ["probe-07"]}))
    expect(night.get_by_test_id("vm-colab-z")).to_have_count(0)
    expect(night.get_by_test_id("run-probe-07")).to_have_count(0)


def test_lines_that_were_left_out_are_counted(night: Page) -> None:
    pages.feed(night, patch(drop=1599, lines=[panel_parts.line(2000, "after the flood")]))
    expect(night.get_by_test_id("log")).to_contain_text("1,599 lines came too fast")


def test_a_log_of_one_run_tells_of_no_gap_of_another(night: Page) -> None:
    first = panel_states.state("overnight")["log"][-1]["n"] + 1
    pages.feed(night, patch(drop=700, lines=[panel_parts.line(first + 700, "on", name="probe-07")]))
    expect(night.get_by_test_id("log")).to_contain_text("700 lines came too fast")
    night.get_by_label("Run", exact=True).select_option("finetune-03")
    expect(night.get_by_test_id("log")).not_to_contain_text("came too fast")


def test_a_mistake_in_the_project_file_is_why_nothing_can_be_sent(page: Page) -> None:
    why = "bridgehead.toml can't be read: mend it first"
    alerts = [
        {"key": "laptop:0", "level": "bad", "text": "an address", "next": "", "t": panel_parts.NOW},
        {"key": "project-file", "level": "bad", "text": "not TOML", "next": "mend it", "t": panel_parts.NOW - 50},
    ]
    pages.show(page, {**panel_states.state("overnight"), "can": {"sh": False, "why": why}, "alerts": alerts})
    expect(page.get_by_test_id("cmd")).to_have_attribute("placeholder", why)
    expect(page.get_by_test_id("alerts").locator("li").first).to_contain_text("not TOML")


def test_pairing_without_a_tunnel_says_who_can_use_the_cell(page: Page) -> None:
    bridge = {"state": "up", "url": "http://127.0.0.1:8766", "tunnel": "none", "trouble": ""}
    pages.show(page, {**panel_states.state("empty"), "bridge": bridge})
    page.get_by_test_id("pair").click()
    page.wait_for_function("kernel.commands('pair').length === 1")
    [asked] = pages.commands(page, "pair")
    pages.feed(page, {"k": "ack", "id": asked["id"], "state": "done", "text": "", "line": "", "cell": "CODE = 1"})
    expect(page.get_by_test_id("pair-box")).to_contain_text("bridgehead up --tunnel cloudflared")
    expect(page.get_by_test_id("pair-box")).to_contain_text("bridgehead up --runtime local")


def test_pairing_without_a_bridge_says_what_to_do_and_goes_once_there_is_one(page: Page) -> None:
    down = {"state": "down", "url": "", "tunnel": "", "trouble": ""}
    pages.show(page, {**panel_states.state("empty"), "bridge": down})
    page.get_by_test_id("pair").click()
    page.wait_for_function("kernel.commands('pair').length === 1")
    [asked] = pages.commands(page, "pair")
    answer = {
        "k": "ack",
        "id": asked["id"],
        "state": "refused",
        "text": "no bridge",
        "next": "bridgehead up",
        "line": "",
    }
    pages.feed(page, answer)
    expect(page.get_by_test_id("pair-box")).to_contain_text("Next: bridgehead up")
    pages.feed(page, patch(bridge={**down, "state": "up"}))
    expect(page.get_by_test_id("pair-box")).to_be_hidden()
    expect(page.get_by_test_id("next")).to_be_visible()


def test_what_never_began_and_has_no_checkpoint_is_not_said_to_have(page: Page) -> None:
    state = panel_states.state("overnight")
    ended = panel_parts.run("export-09", "export", vm="", state="failed", failure="upstream", order=99)
    line = panel_parts.queue(30, "run:export", "failed", run="export-09", began=False)
    pages.show(page, {**state, "runs": [*state["runs"], ended], "queue": [*state["queue"], line]})
    choose(page, "export-09")
    expect(page.get_by_test_id("resume")).to_have_attribute("aria-disabled", "true")
    more = page.get_by_test_id("queue").locator("li").first.locator(".q-more")
    expect(more).to_have_attribute("title", "sent ✓ → taken ✓ → failed")


def test_it_says_that_it_is_there_and_what_it_has(night: Page) -> None:
    night.wait_for_function("kernel.command.sent.some((one) => one.k === 'seen' && one.seq === 10)")
    assert pages.sent(night, "seen")[-1]["hidden"] is False


def test_closing_it_says_goodbye_and_lets_go(night: Page) -> None:
    night.evaluate("window.closePanel()")
    assert pages.sent(night, "bye")
    assert night.evaluate("kernel.feed.handlers.size + kernel.command.handlers.size") == 0


# --- stale and busy --------------------------------------------------------------------------------


def test_without_word_for_six_seconds_it_says_so_and_sends_nothing(browser: Browser) -> None:
    page = pages.open_page(browser)
    page.clock.install(time=NOW)
    page.clock.pause_at(NOW + 1)
    pages.show(page, panel_states.state("overnight"), live=False)
    page.clock.run_for(1000)
    expect(page.get_by_test_id("live")).to_have_text("live")
    page.clock.run_for(3000)
    expect(page.get_by_test_id("stale")).to_be_hidden()
    page.evaluate("kernel.alive = false")
    page.clock.run_for(7000)
    expect(page.get_by_test_id("stale")).to_be_visible()
    expect(page.get_by_test_id("stale")).to_contain_text("Your runs go on")
    expect(page.get_by_test_id("live")).to_have_text("stale")
    page.get_by_test_id("stop").click()
    page.get_by_test_id("stop-save").click()
    page.clock.run_for(200)
    expect(page.get_by_test_id("stop-ask")).to_contain_text("not sent")
    assert pages.commands(page, "stop") == []
    page.evaluate("kernel.alive = true")
    page.clock.run_for(2500)
    expect(page.get_by_test_id("stale")).to_be_hidden()
    page.close()


def test_a_press_that_nobody_takes_says_that_the_kernel_is_busy(night: Page) -> None:
    night.evaluate("kernel.alive = false")
    choose(night, "finetune-03")
    night.get_by_test_id("stop").click()
    night.get_by_test_id("stop-save").click()
    expect(night.get_by_test_id("ack")).to_contain_text("sending")
    expect(night.get_by_test_id("ack")).to_contain_text("bridgehead stop finetune-03 works at once")


# --- what it sends ---------------------------------------------------------------------------------


def test_stop_takes_two_presses_and_is_sent_once(night: Page) -> None:
    choose(night, "finetune-03")
    night.get_by_test_id("stop").click()
    expect(night.get_by_test_id("stop-ask")).to_contain_text("stop:finetune-03")
    expect(night.get_by_test_id("stop-ask")).to_contain_text("loses 3 min of work")
    assert pages.commands(night, "stop") == []
    night.get_by_test_id("stop-save").dblclick()
    stops = pages.commands(night, "stop")
    assert [stop["args"] for stop in stops] == [{"run": "finetune-03", "now": False}]
    line = panel_parts.queue(19, "stop:finetune-03", "taken", id=stops[0]["id"])
    pages.feed(night, patch(queue=[*panel_states.state("overnight")["queue"], line]))
    expect(night.get_by_test_id("ack")).to_contain_text("#19 stop:finetune-03")
    expect(night.get_by_test_id("ack")).to_contain_text("taken")
    expect(night.get_by_test_id("queue").locator("li")).to_have_count(8)


def test_killing_is_a_choice_of_its_own_and_escape_leaves_it_running(night: Page) -> None:
    choose(night, "finetune-03")
    night.get_by_test_id("stop").click()
    night.keyboard.press("Escape")
    expect(night.get_by_test_id("stop-ask")).to_be_hidden()
    expect(night.get_by_test_id("stop")).to_be_focused()
    night.get_by_test_id("stop").click()
    night.get_by_test_id("stop-now").click()
    assert [stop["args"]["now"] for stop in pages.commands(night, "stop")] == [True]


def test_a_run_is_sent_only_after_its_plan_was_shown(night: Page) -> None:
    spec = {"command": "bridgehead:pretrain", "after": [], "config": {"epochs": 2}, "keep_checkpoints": 3}
    night.evaluate(
        "s => { kernel.plan = s }",
        {
            "state": "done",
            "line": "run:pretrain epochs=2",
            "text": "spec: abc; total: unpriced: no provider",
            "spec": spec,
            "plan": {"checks": [{"name": "memos", "state": "warn", "text": "vm_lost 1x", "hint": "bridgehead memos"}]},
        },
    )
    night.get_by_test_id("run-overrides").fill("epochs=2")
    night.get_by_test_id("run").click()
    ask = night.get_by_test_id("ask-run")
    expect(ask).to_contain_text("run:pretrain epochs=2")
    expect(ask.locator("dd").first).to_have_text("bridgehead:pretrain")
    expect(ask.locator("dt").last).to_have_text("warning: memos")
    expect(ask.locator("dd").last).to_have_text("vm_lost 1x. Next: bridgehead memos")
    assert pages.commands(night, "plan")[0]["args"] == {"stage": "pretrain", "overrides": {"epochs": "2"}}
    assert pages.commands(night, "run") == []
    night.get_by_test_id("send-run").click()
    assert [one["args"] for one in pages.commands(night, "run")] == [
        {"stage": "pretrain", "overrides": {"epochs": "2"}}
    ]


def test_what_the_plan_refuses_cannot_be_sent(night: Page) -> None:
    night.evaluate(
        "s => { kernel.plan = s }", {"state": "refused", "text": "no key epoch", "next": "did you mean epochs?"}
    )
    night.get_by_test_id("run-overrides").fill("epoch=2")
    night.get_by_test_id("run").click()
    expect(night.get_by_test_id("ask-run")).to_contain_text("did you mean epochs?")
    night.get_by_test_id("send-run").click(force=True)
    assert pages.commands(night, "run") == []


def test_resume_shows_its_line_first(page: Page) -> None:
    pages.show(page, panel_states.state("failed"))
    choose(page, "finetune-03")
    page.get_by_test_id("resume").click()
    expect(page.get_by_test_id("ask-detail")).to_be_visible()
    assert pages.commands(page, "resume") == []
    assert pages.commands(page, "plan")[0]["args"] == {"verb": "resume", "run": "finetune-03"}
    page.get_by_test_id("send-detail").click()
    assert [one["args"] for one in pages.commands(page, "resume")] == [{"run": "finetune-03"}]


def test_a_shell_command_shows_its_line_and_keeps_its_keys_to_itself(night: Page) -> None:
    night.evaluate("() => { window.keys = 0; document.addEventListener('keydown', () => (window.keys += 1)) }")
    night.get_by_test_id("cmd").click()
    night.keyboard.type("add nvidia-smi")
    expect(night.get_by_test_id("commands")).to_contain_text("sh: add nvidia-smi")
    night.keyboard.press("Enter")
    assert night.evaluate("window.keys") == 0  # a notebook would have made cells of a, d and d
    assert [one["args"] for one in pages.commands(night, "sh")] == [{"text": "add nvidia-smi", "vm": ""}]
    expect(night.get_by_test_id("cmd")).to_have_value("")


def test_a_vm_anywhere_is_given_back_after_its_plan_was_shown(night: Page) -> None:
    plan = {"state": "done", "line": "@colab-a release:", "text": "finetune-03 saves a checkpoint, stops here"}
    night.evaluate("s => { kernel.plan = s }", plan)
    night.get_by_test_id("release-colab-a").click()
    ask = night.get_by_test_id("vm-colab-a").get_by_test_id("ask-release")
    expect(ask).to_contain_text("@colab-a release:")
    expect(ask).to_contain_text("finetune-03 saves a checkpoint")
    assert pages.commands(night, "plan")[0]["args"] == {"verb": "release", "vm": "colab-a"}
    assert pages.commands(night, "release") == []
    ask.get_by_test_id("send-release").click()
    assert [one["args"] for one in pages.commands(night, "release")] == [{"vm": "colab-a"}]
    expect(night.get_by_test_id("release-colab-z")).to_be_hidden()


def test_after_one_stop_the_box_offers_only_the_kill_and_says_what_it_loses(night: Page) -> None:
    choose(night, "finetune-03")
    night.get_by_test_id("stop").click()
    runs = [one for one in panel_states.state("overnight")["runs"] if one["id"] == "finetune-03"]
    pages.feed(night, patch(runs=[{**runs[0], "stopped_by": 19}]))  # by another tab, while this box is open
    box = night.get_by_test_id("stop-ask")
    expect(box).to_contain_text("being stopped already, by line #19")
    expect(box).to_contain_text("A second stop kills it at once and loses 3 min of work since its last checkpoint")
    expect(night.get_by_test_id("stop-save")).to_be_hidden()
    expect(night.get_by_test_id("stop-now")).to_have_text("Kill now, without saving")
    expect(night.get_by_test_id("stop-cancel")).to_be_focused()
    night.get_by_test_id("stop-cancel").click()
    night.get_by_test_id("stop").click()
    expect(night.get_by_test_id("stop-save")).to_be_hidden()
    assert pages.commands(night, "stop") == []


# --- a press whose answer was lost -----------------------------------------------------------------


def test_after_a_restart_the_page_asks_what_became_of_a_press_and_sends_it_only_once(night: Page) -> None:
    night.evaluate("kernel.alive = false")
    choose(night, "finetune-03")
    night.get_by_test_id("stop").click()
    night.get_by_test_id("stop-save").click()
    [before] = pages.commands(night, "stop")
    night.evaluate("window.closePanel(); document.getElementById('cell').replaceChildren(); kernel.alive = true")
    night.evaluate("s => window.show(s)", {**panel_states.state("overnight"), "gen": "g2"})
    night.wait_for_function("kernel.commands('fate').length === 1")
    [question] = pages.commands(night, "fate")
    assert question["args"] == {"of": before["id"]}
    choose(night, "finetune-03")
    night.get_by_test_id("stop").click()
    night.get_by_test_id("stop-save").click()  # again, while nobody knows
    assert [one["id"] for one in pages.commands(night, "stop")] == [before["id"]] * 2
    told = {"k": "ack", "id": question["id"], "state": "taken", "text": "#19", "line": "stop:finetune-03"}
    pages.feed(night, told)
    expect(night.get_by_test_id("ack")).to_contain_text("#19")
    night.get_by_test_id("stop-cancel").click()
    night.get_by_test_id("stop").click()
    expect(night.get_by_test_id("stop-save")).to_be_hidden()  # it has been asked to save
    night.get_by_test_id("stop-now").click()  # another press
    assert len({one["id"] for one in pages.commands(night, "stop")}) == 2


def test_shell_commands_that_are_off_say_so(page: Page) -> None:
    pages.show(page, {**panel_states.state("overnight"), "can": {"sh": False}})
    expect(page.get_by_test_id("cmd")).to_be_disabled()
    expect(page.get_by_test_id("cmd")).to_have_attribute("placeholder", "shell commands are off in bridgehead.toml")


def test_the_pairing_cell_is_shown_once_and_forgotten(page: Page) -> None:
    pages.show(page, panel_states.state("empty"))
    page.get_by_test_id("next-action").click()
    page.wait_for_function("kernel.commands('pair').length === 1")
    command = pages.commands(page, "pair")[0]
    answer = {"k": "ack", "id": command["id"], "state": "done", "text": "", "line": "", "cell": "CODE = 'bh1.secret'"}
    pages.feed(page, answer)
    expect(page.get_by_test_id("pair-cell")).to_have_text("CODE = 'bh1.secret'")
    page.get_by_test_id("pair-close").click()
    assert "bh1.secret" not in inside(page, "root.textContent")


def test_a_desktop_notification_comes_once_when_a_run_ends(browser: Browser) -> None:
    page = pages.open_page(browser)
    page.evaluate(
        """() => {
            window.told = [];
            window.Notification = class { constructor(title, more) { window.told.push([title, more.tag]) } };
            Notification.permission = "default";
            Notification.requestPermission = async () => (Notification.permission = "granted");
        }"""
    )
    pages.show(page, panel_states.state("overnight"))
    assert page.evaluate("window.told") == []
    page.get_by_test_id("notify").click()
    expect(page.get_by_test_id("notify")).to_have_attribute("aria-pressed", "true")
    run = {**panel_states.state("overnight")["runs"][2], "state": "done"}
    pages.feed(page, patch(runs=[run]))
    pages.feed(page, patch(since=11, seq=12, runs=[run]))
    assert page.evaluate("window.told") == [["finetune-03 done", "bridgehead:finetune-03:2:done"]]
    page.close()


# --- the log ---------------------------------------------------------------------------------------


def test_the_log_follows_until_the_reader_scrolls_up_and_end_goes_back(night: Page) -> None:
    log = night.get_by_test_id("log")
    expect(log).to_contain_text(LINE)
    log.evaluate("node => { node.scrollTop = 1000 }")
    expect(night.get_by_test_id("follow")).to_have_attribute("aria-pressed", "false")
    pages.feed(night, patch(lines=[panel_parts.line(401, "unseen")]))
    expect(night.get_by_test_id("follow")).to_have_text("1 new · follow")
    assert log.evaluate("node => node.scrollTop") == 1000
    log.press("End")
    expect(log).to_contain_text("unseen")
    expect(night.get_by_test_id("follow")).to_have_attribute("aria-pressed", "true")


def test_a_log_that_nobody_scrolled_follows_from_the_first_look_on_and_through_a_resize(night: Page) -> None:
    log, follow = night.get_by_test_id("log"), night.get_by_test_id("follow")
    for size in ({"width": 1200, "height": 900}, {"width": 480, "height": 700}, {"width": 1600, "height": 1000}):
        night.set_viewport_size(size)  # type: ignore[arg-type]
        expect(log).to_contain_text(LINE)
        night.evaluate("() => new Promise((done) => setTimeout(done, 300))")
        expect(follow).to_have_attribute("aria-pressed", "true")
    assert log.evaluate("node => node.scrollHeight - node.clientHeight - node.scrollTop") < 3


def test_only_the_rows_in_sight_exist(page: Page) -> None:
    pages.show(page, panel_states.state("crowded"))
    expect(page.get_by_test_id("log")).to_contain_text("step=50000")
    assert inside(page, "root.querySelectorAll('.row').length") < 60


def test_the_oldest_lines_go_and_a_paused_reader_stays_where_he_was(night: Page) -> None:
    log = night.get_by_test_id("log")
    night.evaluate(
        """() => { window.flood = (first, count, since) => {
            const line = (n) => ({ n, t: 1, vm: "v", run: "r", level: "info", text: `flood ${n}` });
            const lines = Array.from({ length: count }, (_, at) => line(first + at));
            kernel.feed.deliver({ k: "p", gen: "g1", since, seq: since + 1, t: 1, lines });
        } }"""
    )
    night.evaluate("flood(401, 9600, 10)")
    expect(log).to_contain_text("flood 10000")
    log.evaluate("node => { node.scrollTop = 18 * 8000 }")
    expect(night.get_by_test_id("follow")).to_have_attribute("aria-pressed", "false")
    expect(log).to_contain_text("flood 8001")
    night.evaluate("flood(10001, 15000, 11)")
    expect(night.get_by_test_id("log-count")).to_have_text("20,000 lines")
    expect(log).to_contain_text("flood 8001")
    assert log.evaluate("node => node.scrollTop") == 18 * 3000


def test_the_filter_marks_what_it_finds_and_enter_searches_the_file(night: Page) -> None:
    choose(night, "finetune-03")
    night.get_by_test_id("log-search").fill("shorter")
    expect(night.get_by_test_id("log-count")).to_have_text("4 of 400")
    assert inside(night, "root.querySelectorAll('mark').length") == 4
    night.keyboard.press("Enter")
    night.wait_for_function("kernel.commands('log').length === 1")
    command = pages.commands(night, "log")[0]
    assert command["args"] == {"run": "finetune-03", "search": "shorter", "from_bytes": 0}
    lines = [{**panel_parts.line(0, f"{n} <b>shorter</b>", "error"), "at": n * 100} for n in range(50)]
    answer = {"from_bytes": 0, "to_bytes": 5000, "size": 1_000_000_000, "hit_bytes": 3000, "searched_to": None}
    pages.feed(night, {"k": "page", "id": command["id"], "state": "done", "text": "", "lines": lines, **answer})
    expect(night.get_by_test_id("log-page")).to_contain_text("of 1,000,000,000")
    expect(night.locator("[data-hit]")).to_contain_text("30 <b>shorter</b>")
    night.get_by_test_id("log-next").click()
    night.wait_for_function("kernel.commands('log').length === 2")
    assert pages.commands(night, "log")[1]["args"]["from_bytes"] == 3100
    night.get_by_test_id("log-live").click()
    expect(night.get_by_test_id("log-page")).to_be_hidden()


def test_first_error_is_asked_of_the_file(night: Page) -> None:
    choose(night, "finetune-03")
    night.get_by_test_id("first-error").click()
    assert pages.commands(night, "log")[0]["args"] == {"run": "finetune-03", "first_error": True}


def test_hostile_text_is_text_everywhere(page: Page) -> None:
    pages.show(page, panel_states.state("hostile"))
    choose(page, "finetune-03")
    log = page.get_by_test_id("log")
    for text in panel_states.HOSTILE[:4]:
        expect(log).to_contain_text(text)
    expect(page.get_by_test_id("alerts")).to_contain_text("<img src=x")
    assert inside(page, "root.querySelectorAll('img, script, a, iframe, b.evil').length") == 0
    assert page.evaluate("window.pwned") is None
