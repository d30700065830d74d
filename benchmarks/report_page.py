"""How the report page does with 2,000 episodes of 150 turns: `python benchmarks/report_page.py`.

Made-up episodes of four models on the hard val tasks, with the text of real demonstrations; headless Chromium opens the
page from disk. Needs Debian's chromium and chromium-driver, and the extra `dev`.
"""

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sft_data.dataset import every_task
from sft_data.procedure import ROUNDS
from textcraft import load_tasks
from tinker_client.evaluation.episodes import load_evaluations
from tinker_client.evaluation.page import write_report
from tinker_client.evaluation.scope import scope

MODELS, ROLLOUTS, TURNS = ("base", "grpo", "sft", "sft_grpo"), 4, 150


def write_episodes(folder: Path) -> None:
    """Every hard task four times for each model, its demonstration with noise, to exactly 150 turns."""
    rng = random.Random(0)
    difficulties = {task.id: task.difficulty for task in load_tasks("val", "hard")}
    demonstrations = every_task(load_tasks("val", "hard"), ROUNDS[2])
    for model in MODELS:
        (folder / model).mkdir()
        with (folder / model / "episodes.jsonl").open("w") as file:
            for demonstration in demonstrations:
                texts = [message["content"] for message in demonstration["messages"][2:]]
                pairs = list(zip(texts[::2], [*texts[1::2], "Finished."], strict=False))
                for episode in range(ROLLOUTS):
                    row = {
                        "task_id": demonstration["task_id"],
                        "depth": demonstration["depth"],
                        "difficulty": difficulties[demonstration["task_id"]],
                        "group": 0,
                        "episode": episode,
                        "end": rng.choice(["success", "out_of_turns"]),
                        "error": None,
                        "turns": [turn(rng, *pairs[number % len(pairs)]) for number in range(TURNS)],
                    }
                    file.write(json.dumps(row) + "\n")


def turn(rng: random.Random, reply: str, observation: str) -> dict[str, Any]:
    return {
        "reply": f"{rng.random()}\n{reply}",
        "observation": observation,
        "kind": rng.choice(["info", "craft", "failed_craft", "invalid"]),
        "reply_tokens": len(reply) // 3,
        "cut_off": rng.random() < 0.05,
    }


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("apt-get install chromium chromium-driver first")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    table = Table("what", "measured")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_episodes(folder)
        size = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
        what = scope(load_evaluations([str(folder / model) for model in MODELS]))
        table.add_row("episodes", f"{sum(len(e.episodes) for e in what.evaluations):,}, {size / 1e6:.0f} MB of JSON")
        written = seconds(lambda: write_report(what, folder / "report"))
        table.add_row("write tables, pictures and page", f"{written:.1f} s")
        page = folder / "report" / "report.html"
        table.add_row("size of the page", f"{page.stat().st_size / 1e6:.1f} MB")
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        browser.implicitly_wait(30)

        def open_first() -> None:
            browser.find_element(By.CSS_SELECTOR, "#list tr button").click()
            browser.find_element(By.CSS_SELECTOR, f"#viewer .turn:nth-of-type({TURNS})")

        def put_beside() -> None:
            Select(browser.find_element(By.CSS_SELECTOR, "select.beside")).select_by_index(1)
            browser.find_element(By.CSS_SELECTOR, f"article + article .turn:nth-of-type({TURNS})")

        actions: dict[str, Callable[[], object]] = {
            "load": lambda: browser.get(page.as_uri()),
            "filter by model": lambda: Select(browser.find_element(By.ID, "model")).select_by_index(2),
            "show an episode": open_first,
            "another beside it": put_beside,
        }
        try:
            for name, action in actions.items():
                table.add_row(name, f"{seconds(action):.2f} s")
            heap = browser.execute_script("return performance.memory.usedJSHeapSize")
            table.add_row("memory of the page's script", f"{heap / 1e6:.0f} MB")
        finally:
            browser.quit()
    Console().print(table)


if __name__ == "__main__":
    main()
