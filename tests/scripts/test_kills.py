"""A short kill suite; the long one is `python -m tests.kill_suite`."""

import pytest

from tests.kill_suite import SCRIPTS, Config, main


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_everything_survives_a_kill_of_its_script_and_of_its_server(tmp_path, capsys):
    assert main(Config(out=tmp_path, kills=4, server_kills=2, faults=("lose_answer",), kills_a_run=1))
    output = capsys.readouterr().out
    assert "kills survived / tried: 6 / 6" in output
    assert "runs with faults survived / tried: 1 / 1" in output


@pytest.mark.slow
def test_a_training_run_survives_a_kill_and_its_server(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tests.kill_suite.SCRIPTS", {"sft": SCRIPTS["sft"]})
    assert main(Config(out=tmp_path, kills=1, server_kills=1, faults=()))
    assert "kills survived / tried: 2 / 2" in capsys.readouterr().out
