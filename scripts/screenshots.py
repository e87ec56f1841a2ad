"""Write the pictures of both boards for the README and the docs to docs/images: of jobs that this script makes up.

    python scripts/screenshots.py [FOLDER]

It starts `baton board` in a pane of tmux and `baton web` for a user with no other jobs, in a temporary folder. A
headless Chromium shows both: the captured screen of the terminal, and the page."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from terminal_page import terminal_page  # noqa: E402

from support.board import BoardTerminal  # noqa: E402
from support.waiting import wait_until  # noqa: E402
from support.web import User, WebBoard, chromium, fill, set_width  # noqa: E402

PHONE, DESK, TERMINAL = (360, 740), (1440, 900), (110, 30)


def picture(browser: Any, folder: str, name: str, of: str = "") -> None:
    """Write a picture of the page, or of one element of it."""
    path = os.path.join(folder, f"{name}.png")
    (browser.find_element("css selector", of).screenshot if of else browser.save_screenshot)(path)
    print(os.path.relpath(path), f"{os.path.getsize(path) // 1024} KB")


def click(browser: Any, text: str, within: str) -> None:
    find = (
        "return [...document.querySelectorAll(arguments[1] + ' button')]"
        ".find(e => e.offsetParent && e.innerText.includes(arguments[0]))"
    )
    button = wait_until(lambda: browser.execute_script(find, text, within), f"a button {text}")
    browser.execute_script("arguments[0].click()", button)


def wait_for(browser: Any, text: str, within: str) -> None:
    find = "return document.querySelector(arguments[1]).innerText.includes(arguments[0])"
    wait_until(lambda: browser.execute_script(find, text, within), text)


def take_terminal(browser: Any, user: User, place: str, folder: str) -> None:
    width, height = TERMINAL
    set_width(browser, 1600, 900)
    page = os.path.join(place, "terminal.html")
    with BoardTerminal(user.root, user.env, width=width, height=height) as board:
        for name, keys, seen in (
            ("request", (), ("command: npm install",)),
            ("live", ("/", "search", "Enter", "Escape"), ("I add an index", "/17")),
        ):
            for key in keys:
                board.type(key) if key == "search" else board.press(key)
            board.sees(*seen)
            with open(page, "w", encoding="utf-8") as file:
                file.write(terminal_page(board.lines(colours=True)))
            browser.get(f"file://{page}")
            picture(browser, folder, f"terminal-{name}", "#terminal")


def take_web(browser: Any, address: str, folder: str) -> None:
    browser.get(address)
    wait_until(lambda: browser.execute_script("return document.querySelectorAll('.card pre').length") == 3, "requests")
    for size, where in ((DESK, "desk"), (PHONE, "phone")):
        for dark in (False, True):
            set_width(browser, *size, dark=dark)
            browser.execute_script("scrollTo(0, 0)")
            picture(browser, folder, f"web-{where}-{'dark' if dark else 'light'}")
    set_width(browser, *DESK)
    click(browser, "Speed up the search page", ".list")
    wait_for(browser, "I add an index", "#detail")
    picture(browser, folder, "web-job-light")
    set_width(browser, *PHONE, dark=True)
    browser.execute_script("scrollTo(0, 0)")
    picture(browser, folder, "web-job-phone-dark")
    click(browser, "All jobs", "#detail")
    set_width(browser, *PHONE)
    browser.execute_script("document.getElementById('group-failed').scrollIntoView(); scrollBy(0, -70)")
    picture(browser, folder, "web-list-phone-light")
    set_width(browser, *DESK)
    click(browser, "Find the memory leak", ".list")
    click(browser, "Timeline", ".tabs")
    click(browser, "Cost", "header")
    wait_for(browser, "attempt 1", "#pane")
    browser.execute_script("scrollTo(0, 0)")
    picture(browser, folder, "web-cost-light")


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "docs", "images")
    os.makedirs(folder, exist_ok=True)
    os.environ["TZ"] = "UTC"
    time.tzset()
    place = tempfile.mkdtemp(prefix="baton-pictures-")
    try:
        user = User(os.path.join(place, "work"))
        os.makedirs(user.root)
        fill(user)
        board = WebBoard(user)
        try:
            with chromium() as browser:
                take_terminal(browser, user, place, folder)
                take_web(browser, board.address, folder)
        finally:
            board.stop()
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
