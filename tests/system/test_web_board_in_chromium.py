"""The web board in a real Chromium: one server and one browser for the whole story."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import combinations

import pytest

from support.waiting import wait_until
from support.web import User, WebBoard, answer, ask, chromium, fill, script, set_width, start, wait_still

HOSTILE = (
    "<img src=x onerror=document.title='pwned'><script>document.title='pwned'</script>\"'><svg onload=alert(1)>"
    "javascript:alert(1) {{7*7}} ${7*7} \u202eevil\u2066 \x1b]0;pwned\x07\x1b[31m </pre></style><style>*{display:none}"
)


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    user = User(tmp_path_factory.mktemp("user"))
    user.made = fill(user)
    return user


@pytest.fixture(scope="module")
def board(user):
    board = WebBoard(user)
    yield board
    board.stop()


@pytest.fixture(scope="module")
def browser(board):
    with chromium() as browser:
        browser.get(board.address)
        yield browser
        severe = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
        # A server that was killed, and answers that say no, are what these tests are about.
        assert [line for line in severe if "Failed to load resource" not in line["message"]] == []


def text(browser):
    return script(browser, "return document.body.innerText")


def click(browser, what, within="body"):
    """Click the button with this text, as a person does, and not before it is there."""

    def find():
        return script(
            browser,
            "return [...document.querySelectorAll(arguments[1] + ' button, ' + arguments[1] + ' summary')]"
            ".find(each => each.offsetParent && !each.disabled && each.innerText.includes(arguments[0]))",
            what, within,
        )  # fmt: skip

    button = wait_until(find, f"a button {what}")
    script(browser, "arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()


def wait_for(browser, what, *, within="body"):
    def shown():
        return what in (script(browser, "return (document.querySelector(arguments[0]) || {}).innerText", within) or "")

    wait_until(shown, f"{what!r} in {within}")


def open_job(browser, title):
    click(browser, title, ".list")
    wait_for(browser, title, within="#detail")


def state_of(user, name, request):
    with user.jobs(name) as jobs:
        found = jobs.registry.get_request(request.request_id)
        return found.state, found.answer, found.via


def test_a_token_signs_in_and_leaves_the_address(browser, board):
    wait_for(browser, "Update the payment library")
    assert "token" not in browser.current_url
    assert script(browser, "return document.cookie") == ""  # HttpOnly
    assert browser.title.startswith("(8)")
    groups = script(
        browser, "return [...document.querySelectorAll('.group h2')].filter(e => e.offsetParent).map(e => e.innerText)"
    )
    assert [each.split("\n")[1] for each in groups] == [
        "Failed", "Stalled", "At a usage limit", "Finished, not seen yet", "Working", "Pending", "Done"
    ]  # fmt: skip


def test_a_request_is_approved_and_another_denied(browser, user):
    _, approved = user.made["approve"]
    _, denied = user.made["deny"]
    wait_for(browser, "npm install payments@4 && npm test", within=f"#ask-{approved.request_id}")
    done = ("answered", "allow", "web")
    answer(browser, "Approve", f"#ask-{approved.request_id}", lambda: state_of(user, "shop", approved) == done)
    wait_until(lambda: not script(browser, f"return document.getElementById('ask-{approved.request_id}')"), "it goes")
    click(browser, "More choices", f"#ask-{denied.request_id}")
    script(browser, f"document.querySelector('#ask-{denied.request_id} input[type=text]').value = 'not on Fridays'")
    done = ("answered", "deny", "web")
    answer(browser, "Deny", f"#ask-{denied.request_id}", lambda: state_of(user, "infra", denied) == done)
    with user.jobs("infra") as jobs:
        assert jobs.registry.get_request(denied.request_id).reason == "not on Fridays"


def test_an_answer_right_after_the_list_moved_is_not_sent(browser, user):
    with user.jobs("shop") as jobs:
        job = start(jobs, "sudden", title="Sudden question")
        request = ask(jobs, job, {"command": "rm -rf /"})
    selector = f"#ask-{request.request_id}"
    wait_for(browser, "rm -rf /", within=selector)
    script(
        browser, "movedAt = performance.now(); document.querySelector(arguments[0] + ' button.main').click()", selector
    )
    wait_for(browser, "nothing was sent", within="#say")
    assert state_of(user, "shop", request)[0] == "open"
    answer(browser, "Deny", selector, lambda: state_of(user, "shop", request)[1] == "deny")


def test_a_long_call_is_approved_after_it_was_scrolled_to_its_end(browser, user):
    with user.jobs("shop") as jobs:
        job = start(jobs, "long", title="Long call")
        request = ask(jobs, job, {"command": "\n".join(f"step {number}" for number in range(200))})
    selector = f"#ask-{request.request_id}"
    wait_for(browser, "step 199", within=selector)
    wait_still(browser)
    script(browser, "document.querySelector(arguments[0] + ' button.main').click()", selector)
    wait_for(browser, "scroll the call to its end", within="#say")
    assert state_of(user, "shop", request)[0] == "open"
    script(browser, "const e = document.querySelector(arguments[0] + ' pre'); e.scrollTop = e.scrollHeight", selector)
    answer(browser, "Approve", selector, lambda: state_of(user, "shop", request)[1] == "allow")


def test_a_call_that_could_not_be_loaded_is_loaded_later(browser, user):
    script(browser, "window.kept = window.fetch; window.fetch = () => Promise.reject(new Error('away'))")
    with user.jobs("shop") as jobs:
        request = ask(jobs, start(jobs, "late", title="Late call"), {"command": "make late"})
    selector = f"#ask-{request.request_id}"
    wait_for(browser, "cannot be reached", within=selector)
    script(browser, "window.fetch = window.kept")
    wait_for(browser, "make late", within=selector)
    answer(browser, "Deny", selector, lambda: state_of(user, "shop", request)[1] == "deny")


def test_a_question_is_answered_with_a_choice(browser, user):
    _, question = user.made["question"]
    selector = f"#ask-{question.request_id}"
    wait_for(browser, "Administrators", within=selector)
    script(browser, "document.querySelectorAll(arguments[0] + ' input[type=radio]')[1].click()", selector)
    answer(browser, "Answer", selector, lambda: state_of(user, "docs", question)[0] == "answered")
    with user.jobs("docs") as jobs:
        assert list(jobs.registry.get_request(question.request_id).choices.values()) == ["Administrators"]


def test_live_output_history_explanation_and_timeline_of_a_job(browser, user):
    open_job(browser, "Speed up the search page")
    wait_for(browser, "I add an index", within="#pane")
    user.write_output("shop", user.made["live"], "● A line that came later\n")
    wait_for(browser, "A line that came later", within="#pane")
    click(browser, "History", ".tabs")
    wait_for(browser, "registered", within="#pane")
    click(browser, "Explain", ".tabs")
    wait_for(browser, "known by", within="#pane")
    click(browser, "Timeline", ".tabs")
    wait_for(browser, "attempt 1", within="#pane")
    assert script(browser, "return document.querySelectorAll('#pane svg rect').length") >= 2
    click(browser, "Result", ".tabs")
    wait_for(browser, "has not ended", within="#pane")
    click(browser, "Task", ".tabs")
    wait_for(browser, "100,000 products", within="#pane")
    click(browser, "All jobs", "#detail")


def test_a_job_is_cancelled_after_a_question(browser, user):
    open_job(browser, "Compare cloud prices")
    click(browser, "Cancel", "#acts")
    click(browser, "Yes", "#form")

    def status():
        with user.jobs("infra") as jobs:
            return jobs.get_job(user.made["pending"].job_id)

    wait_until(lambda: status().status == "cancelled", "the job is cancelled")
    assert "web" in status().reason
    wait_for(browser, "cancelled", within="#head")
    click(browser, "All jobs", "#detail")


def test_marking_as_seen_and_snoozing_move_a_job(browser, user):
    open_job(browser, "Find the memory leak")
    click(browser, "Mark as seen", "#acts")
    wait_until(
        lambda: "Find the memory leak" in script(browser, "return document.getElementById('group-done').innerText")
    )
    click(browser, "All jobs", "#detail")
    open_job(browser, "Renew the certificates")
    click(browser, "Snooze", "#acts")
    wait_for(browser, "Renew the certificates", within="#group-snoozed")
    click(browser, "Wake", "#acts")
    wait_for(browser, "Renew the certificates", within="#group-stalled")
    click(browser, "All jobs", "#detail")


def test_keys_move_through_the_list_and_close_a_job(browser):
    from selenium.webdriver import ActionChains, Keys

    wait_still(browser)  # the test before has answered, and its card may still go
    script(browser, "document.activeElement.blur()")
    ActionChains(browser).send_keys("j").send_keys("j").perform()
    assert script(browser, "return document.activeElement.className") in ("job", "open")
    ActionChains(browser).send_keys("w").perform()
    kind, symbol = script(
        browser, "const it = document.activeElement; return [it.className, it.firstChild.textContent]"
    )
    assert kind == "open" or symbol in "◆✖▲◷✔", (kind, symbol)
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    wait_until(lambda: script(browser, "return !document.getElementById('detail').hidden"), "the job is open")
    wait_until(lambda: script(browser, "return document.activeElement.id") == "detail", "the job has the focus")
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    wait_until(lambda: script(browser, "return document.getElementById('detail').hidden"), "the job is closed")
    assert script(browser, "return document.activeElement.className") == kind


def test_the_keyboard_answers_and_goes_on_with_the_next_request(browser, user):
    from selenium.webdriver import ActionChains, Keys

    with user.jobs("shop") as jobs:
        asked = [ask(jobs, start(jobs, name, title=name), {"command": f"make {name}"}) for name in ("one", "two")]
    for each in asked:
        wait_for(browser, "make", within=f"#ask-{each.request_id}")
    # From the title: the call, Approve, Deny.
    script(browser, f"document.querySelector('#ask-{asked[0].request_id} .open').focus()")
    wait_still(browser)
    ActionChains(browser).send_keys(Keys.TAB, Keys.TAB, Keys.TAB).perform()
    assert script(browser, "return document.activeElement.innerText") == "Deny"
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    wait_until(lambda: state_of(user, "shop", asked[0])[1] == "deny", "the first is denied")
    focused = "return document.activeElement.closest('.card') && document.activeElement.closest('.card').id"
    wait_until(lambda: script(browser, focused) == f"ask-{asked[1].request_id}", "the next one has the focus")
    assert state_of(user, "shop", asked[1])[0] == "open"
    answer(browser, "Deny", f"#ask-{asked[1].request_id}", lambda: state_of(user, "shop", asked[1])[1] == "deny")


def test_a_reload_needs_no_new_token(browser, board):
    browser.get(board.origin + "/")
    wait_for(browser, "Speed up the search page")


def test_a_server_at_another_port_of_this_host_gets_no_login(browser, board):
    """Browsers send cookies to all ports of a host."""
    asked = []

    class Listening(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("Cookie")))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<img src=/api/board><img src=/><p>other")

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Listening) as other:
        thread = threading.Thread(target=other.serve_forever, args=(0.05,))
        thread.start()
        try:
            browser.get(f"http://127.0.0.1:{other.server_port}/")
            wait_for(browser, "other")
            wait_until(lambda: "/api/board" in dict(asked), "all requests")
        finally:
            other.shutdown()
            thread.join()
    assert {cookie for _, cookie in asked} == {None}
    browser.get(board.origin + "/")
    wait_for(browser, "Speed up the search page")


def test_the_page_goes_on_after_the_server_was_killed(browser, board, user):
    board.kill()
    wait_for(browser, "not connected", within="#state")
    with user.jobs("docs") as jobs:
        jobs.register_job("Came while the board was away")
    board.start()
    wait_for(browser, "Came while the board was away")
    with user.jobs("docs") as jobs:
        jobs.register_job("Came after it was back")
    wait_for(browser, "Came after it was back")
    assert "not connected" not in text(browser)


def test_hostile_text_in_every_field_executes_nothing(browser, user):
    """S10: as prompt, title, label, agent, detail, reason, tool, call, question, choice, output and message."""
    with user.jobs(os.path.join("shop", "<b onmouseover=alert(1)>")) as jobs:
        job = start(jobs, HOSTILE * 5_000, title="hostile " + HOSTILE.partition(" \u202e")[0],
                    labels=["<script>alert(1)</script>"], agent="claude-code")  # fmt: skip
        jobs.record_event(job.job_id, "progress", detail=HOSTILE, attempt=1)
        request = ask(jobs, job, {"command": HOSTILE, HOSTILE: [HOSTILE]}, HOSTILE)
        asked = ask(jobs, job, {}, HOSTILE, kind="question", options=(
            {"question": HOSTILE, "choices": [HOSTILE, "<script>alert(2)</script>"], "several": True},))  # fmt: skip
        ended = start(jobs, HOSTILE, title="hostile end " + HOSTILE.partition(" \u202e")[0])
        jobs.update_status(ended.job_id, "error", reason=HOSTILE)
    user.write_output(os.path.join("shop", "<b onmouseover=alert(1)>"), job, HOSTILE)
    for each in (request, asked):
        wait_for(browser, "onerror", within=f"#ask-{each.request_id}")
    assert "<U+202E>" in script(browser, f"return document.querySelector('#ask-{request.request_id} pre').innerText")
    for title in ("hostile <img", "hostile end"):
        open_job(browser, title)
        for name in ("Timeline", "History", "Explain", "Result", "Task", "Live"):
            click(browser, name, ".tabs")
            wait_until(lambda: script(browser, "return document.getElementById('pane').innerText.length > 3"), name)
        click(browser, "All jobs", "#detail")
    assert "pwned" not in browser.title
    # What the page itself has made, and nothing else.
    odd = "img:not([src='/icon.svg']), script:not([src='/page.js']), style, iframe, object, embed, form[action], svg[onload]"
    assert script(browser, "return document.querySelectorAll(arguments[0]).length", odd) == 0
    assert script(browser, "return [...document.querySelectorAll('*')].filter(e => [...e.attributes]"
                  ".some(a => a.name.startsWith('on'))).length") == 0  # fmt: skip
    with user.jobs(os.path.join("shop", "<b onmouseover=alert(1)>")) as jobs:
        jobs.update_status(job.job_id, "cancelled")
        jobs.update_status(ended.job_id, "error")


# -- layout ------------------------------------------------------------------------------------------------------------

_MEASURE = """
const shown = (e) => e.offsetParent !== null && e.getClientRects().length > 0;
const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
function back(e) { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; }
const texts = [...document.querySelectorAll('body *')].filter((e) => shown(e)
  && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && !e.closest('svg') && !e.closest('.skip'));
return {
  // Not innerWidth: a phone shows a page that is too wide in a smaller size.
  wide: document.documentElement.scrollWidth,
  targets: [...document.querySelectorAll('button, input, textarea, summary')].filter(shown).filter((e) => {
    const target = e.type === 'checkbox' || e.type === 'radio' ? e.closest('label') : e;
    const r = target.getBoundingClientRect(); return r.height < 44 || r.width < 44; }).map((e) => e.outerHTML.slice(0, 120)),
  faint: texts.map((e) => { const a = luminance(rgb(getComputedStyle(e).color)), b = luminance(back(e));
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40)]; })
    .concat([...document.querySelectorAll('[placeholder]')].filter(shown).map((e) => {
      const a = luminance(rgb(getComputedStyle(e, '::placeholder').color)), b = luminance(back(e));
      return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.placeholder]; }))
    .filter(([ratio]) => ratio < 4.5),
  unnamed: [...document.querySelectorAll('button, input, textarea, [role]')].filter(shown)
    .filter((e) => !(e.innerText || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.placeholder || (e.labels && e.labels.length)))
    .map((e) => e.outerHTML.slice(0, 120)),
  blocks: [...document.querySelectorAll('header > *, .card, .group li, .filter, #detail > *, #cost, #acts > button, .tabs > button, .row > button')]
    .filter(shown).map((e) => [e.outerHTML.slice(0, 80), ...box(e)]),
};
"""


def overlaps(blocks):
    """Blocks that lie over each other in part: one within another is as it should be."""
    found = []
    for (a, *one), (b, *other) in combinations(blocks, 2):
        left, top = max(one[0], other[0]), max(one[1], other[1])
        right, bottom = min(one[2], other[2]), min(one[3], other[3])
        if right - left > 1 and bottom - top > 1:
            cut = (right - left) * (bottom - top)
            smaller = min((r - x) * (s - y) for x, y, r, s in (one, other))
            if cut < 0.98 * smaller:
                found.append((a, b))
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_the_layout_fits_the_screen(browser, user, width, dark):
    with user.jobs("shop") as jobs:
        job = start(jobs, "x", title="A very long title " + "without-a-single-break" * 7)
        request = ask(jobs, job, {"command": "curl " + "a" * 600})
    set_width(browser, width, 800, dark=dark)
    wait_for(browser, "curl", within=f"#ask-{request.request_id}")
    script(browser, "if (document.getElementById('cost').hidden) document.getElementById('show-cost').click();"
           "document.querySelectorAll('details').forEach(e => { e.open = true }); scrollTo(0, 0)")  # fmt: skip
    for title in (None, "Speed up the search page"):
        if title is not None:
            open_job(browser, title)
            wait_for(browser, "I add an index", within="#pane")
            click(browser, "Timeline", ".tabs")
        found = script(browser, _MEASURE)
        assert found["wide"] <= width, title
        assert found["targets"] == [], title
        assert found["faint"] == [], title
        assert found["unnamed"] == [], title
        if title is None or width < 1000:
            # On a wide screen, the header and the job stay in place while the list moves below them.
            assert overlaps(found["blocks"]) == [], title
    click(browser, "All jobs", "#detail")
    with user.jobs("shop") as jobs:
        jobs.update_status(job.job_id, "cancelled")
    wait_until(lambda: not script(browser, f"return document.getElementById('ask-{request.request_id}')"), "it goes")


def test_assets_are_small_and_from_here(browser, board):
    names = ("/", "/page.css", "/page.js", "/icon.svg")
    assert sum(len(board.call(name).content) for name in names) <= 60 * 1024
    loaded = script(browser, "return performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded
    assert all(name.startswith(board.origin) for name in loaded)


def test_signing_out_shows_nothing_any_more(browser, board):
    click(browser, "Sign out", "header")
    wait_for(browser, "You are signed out", within="#login")
    assert "Speed up" not in script(browser, "return document.body.textContent")
    assert script(browser, "return localStorage.length") == 0
    browser.get(board.origin + "/")
    wait_for(browser, "baton web token", within="#login")
    assert "Speed up" not in text(browser)
