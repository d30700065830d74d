"""The report page in headless Chromium, opened from disk; skipped without Debian's chromium and chromium-driver."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.made_up import FIT_75, row, write
from tinker_client.evaluation.episodes import load_evaluations
from tinker_client.evaluation.page import write_report
from tinker_client.evaluation.scope import scope

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver"
)

ATTACKS = (
    "<script>document.title = 'hacked'</script>",
    "</script><script>document.title = 'hacked'</script>",
    "<img src=x onerror=\"document.title='hacked'\">",
    "<!--<script>",
    "\u2028]]></style>&lt;b&gt; 'quoted' \"twice\" \\u003c \x00 é 🙂 \ud83d",
)


def report(tmp_path: Path, episodes: int = 2) -> Path:
    """Two models on four tasks; replies that are HTML and script, and one broken episode."""
    for name, skill in (("base", 0), ("<i>sft</i>", 2)):
        rows = [
            row(task.id, "success" if number < skill else "out_of_turns", "iffcxV" + "c" * number, depth=task.depth)
            | {"episode": episode}
            for number, task in enumerate(FIT_75[:4])
            for episode in range(episodes)
        ]
        for each in rows:
            for turn, attack in zip(each["turns"][3:], ATTACKS, strict=False):
                turn["reply"] = turn["observation"] = attack.encode("utf-8", "replace").decode()
        rows[-1] |= {"end": "broken", "error": ATTACKS[0]}
        write(tmp_path / name.strip("</i>"), rows)
    what = scope(load_evaluations([f"base={tmp_path / 'base'}", f"<i>sft</i>={tmp_path / 'sft'}"]))
    write_report(what, tmp_path / "report")
    return tmp_path / "report" / "report.html"


def test_the_page_is_one_file_that_asks_for_nothing(tmp_path: Path):
    text = report(tmp_path).read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert "default-src 'none'" in text
    assert text.count("<script>") == 1
    assert "hacked" not in re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.S)
    index = re.search(r'<script type="application/json" id="index">(.*?)</script>', text, flags=re.S)
    assert len(json.loads(index[1])["episodes"]) == 16
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"tables.md", "main_results.csv", "success_by_budget.png", "success_by_budget.svg"} <= names


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from selenium import webdriver  # noqa: PLC0415 - only where there is a browser

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,1000",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.implicitly_wait(5)
    yield driver
    driver.quit()


@needs_browser
def test_the_page_filters_and_shows_episodes_side_by_side_as_text(tmp_path: Path, browser):
    from selenium.webdriver.common.by import By  # noqa: PLC0415
    from selenium.webdriver.support.ui import Select  # noqa: PLC0415

    def rows() -> list[str]:
        return [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#list tr")]

    browser.get(report(tmp_path).as_uri())
    title = browser.title
    assert browser.find_element(By.ID, "count").text == "16 of 16 episodes"
    assert len(rows()) == 16
    pictures = browser.find_elements(By.CSS_SELECTOR, "#pictures img")
    assert pictures
    assert all(int(picture.get_property("naturalWidth")) > 100 for picture in pictures)

    Select(browser.find_element(By.ID, "model")).select_by_visible_text("<i>sft</i>")
    assert len(rows()) == 8
    Select(browser.find_element(By.ID, "end")).select_by_visible_text("success")
    assert len(rows()) == 4
    assert all("success" in text for text in rows())
    browser.find_element(By.ID, "task").send_keys(FIT_75[0].id)
    assert len(rows()) == sum(FIT_75[0].id in task.id for task in FIT_75[:2]) * 2
    Select(browser.find_element(By.ID, "depth")).select_by_visible_text(str(FIT_75[0].depth))
    assert len(rows()) >= 2

    browser.find_element(By.CSS_SELECTOR, "#list tr button").click()
    (shown,) = browser.find_elements(By.CSS_SELECTOR, "#viewer article")
    turns = [turn.text for turn in shown.find_elements(By.CSS_SELECTOR, ".turn")]
    assert len(turns) == 6
    assert "failed craft\n" in turns[1]
    assert "failed craft, repeated" in turns[2]
    assert "invalid turn" in turns[4]
    assert "reply cut off" in turns[5]
    replies = [reply.get_property("textContent") for reply in shown.find_elements(By.CSS_SELECTOR, "pre.reply")]
    assert replies[3:6] == list(ATTACKS[:3])
    assert "Target: craft" in shown.find_element(By.CSS_SELECTOR, "pre.opening").text

    beside = Select(shown.find_element(By.CSS_SELECTOR, "select.beside"))
    assert len(beside.options) == 4  # nothing, and the other three episodes of this task
    beside.select_by_index(1)
    assert len(browser.find_elements(By.CSS_SELECTOR, "#viewer article:nth-child(2)")) == 1
    heads = [head.text for head in browser.find_elements(By.CSS_SELECTOR, "#viewer h3")]
    assert heads[0].startswith("<i>sft</i>, episode 1: success after 6 turns")
    assert heads[1].startswith("base, episode 1: out_of_turns")

    assert browser.title == title
    assert not browser.find_elements(By.CSS_SELECTOR, "#viewer img, #viewer script, #viewer i, #tables i")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    browser.refresh()  # the address remembers what is open
    assert len(browser.find_elements(By.CSS_SELECTOR, "#viewer article:nth-child(2)")) == 1


@needs_browser
def test_a_long_list_is_made_as_it_is_asked_for(tmp_path: Path, browser):
    from selenium.webdriver.common.by import By  # noqa: PLC0415

    browser.get(report(tmp_path, episodes=30).as_uri())
    assert browser.find_element(By.ID, "count").text == "240 of 240 episodes"
    for expected in (100, 200, 240):
        assert len(browser.find_elements(By.CSS_SELECTOR, "#list tr")) == expected
        if expected < 240:
            browser.find_element(By.ID, "more").click()
    assert not browser.find_element(By.ID, "more").is_displayed()
