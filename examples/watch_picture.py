"""The picture of README.md: a page of amlp-fairseq watch in the middle of an animation.

    amlp-fairseq watch --model DIR [--model DIR2 …] --html page.html "A sentence."
    python examples/watch_picture.py page.html docs/watch.png --step 4

It needs playwright (pip install playwright) and a Chromium.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("page", type=Path, help="written by amlp-fairseq watch")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument("--step", type=int, default=4, help="of the animation, from 0 (default: 4)")
    parser.add_argument("--chromium", default="/usr/bin/chromium", help="the browser (default: /usr/bin/chromium)")
    args = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 400}, device_scale_factor=1.5)
        page.goto(f"{args.page.resolve().as_uri()}#{args.step}")
        page.add_style_tag(content=".controls, #theme, .note { display: none } main { padding-bottom: 1.25rem }")
        page.screenshot(path=args.picture, full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
