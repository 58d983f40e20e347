"""Ctrl-C, and the SIGTERM of a machine that is taken away: a line that says how to go on, and no traceback."""

import os
import signal
import subprocess
import sys

import pytest

PLAIN = "time.sleep(60)"
ASYNC = "asyncio.run(asyncio.sleep(60))"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("wait", [PLAIN, ASYNC])
def test_an_interrupt_is_one_line_and_exit_130(how, wait, repository):
    code = (
        "import asyncio, time\nfrom launch import common\n\n"
        f"def main(_):\n    print('up', flush=True)\n    {wait}\n\ncommon.run(main)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=take_sigint,
    )
    assert process.stdout.readline() == "up\n"
    process.send_signal(how)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command goes on" in errors
    assert "Traceback" not in errors


def take_sigint() -> None:
    """Jobs in the background of a script ignore SIGINT, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
