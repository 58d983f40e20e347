"""Starts a vLLM server for the data stage, from an environment of its own, and waits until it answers.

  python -m launch.serve --vllm=/path/to/vllm-venv/bin/vllm --model=DIR_OR_NAME --port=8000
  python -m launch.collect --engine=http://127.0.0.1:8000/v1 --model=policy ...

vLLM pins its own torch, so it lives beside this project and is spoken to over HTTP (`pip install 'webleaper-jax[vllm]'`
in a fresh environment installs it). The server runs until this command is interrupted.
"""

import pathlib
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

import httpx
from absl import flags

from launch import common
from webleaper_jax.jsonl import DataError

FLAGS = flags.FLAGS
flags.DEFINE_string("vllm", "vllm", "The vllm command: a name on PATH, or the path of one in another environment.")
flags.DEFINE_string(
    "model", None, "Hugging Face checkpoint directory (or a name that the server can load).", required=True
)
flags.DEFINE_string("served_name", "policy", "The model's name in requests.")
flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.")
flags.DEFINE_integer("port", 8000, "Port to listen on.")
flags.DEFINE_integer("max_model_len", 32768, "Longest context, in tokens.")
flags.DEFINE_string("dtype", "auto", "auto, bfloat16 or float32.")
flags.DEFINE_list("extra", [], "Further flags for vllm serve, separated by commas.")
flags.DEFINE_float("wait", 600.0, "Seconds to wait for the server to answer.", lower_bound=1)
flags.DEFINE_bool("dry_run", False, "Print the server's command and stop.")


def command() -> list[str]:
    """Returns the `vllm serve` command for the flags."""
    return [
        FLAGS.vllm, "serve", FLAGS.model, "--served-model-name", FLAGS.served_name, "--host", FLAGS.host,
        "--port", str(FLAGS.port), "--max-model-len", str(FLAGS.max_model_len), "--dtype", FLAGS.dtype, *FLAGS.extra,
    ]  # fmt: skip


def main(_: Sequence[str]) -> None:
    words = command()
    print(shlex.join(words), flush=True)
    if FLAGS.dry_run:
        return
    if not shutil.which(FLAGS.vllm):
        raise DataError(
            f"--vllm={FLAGS.vllm}: no such command; install vLLM in an environment of its own and give its bin/vllm"
        )
    folder = pathlib.Path(FLAGS.model)
    is_place = folder.exists() or FLAGS.model.startswith((".", "/"))  # anything else may be a name on a hub
    if is_place and not (folder / "config.json").exists():
        raise DataError(f"--model={FLAGS.model}: holds no config.json, it is no Hugging Face checkpoint")
    server = subprocess.Popen(words)
    try:
        _wait_until_healthy(server)
        print(f"serving {FLAGS.served_name} at http://{FLAGS.host}:{FLAGS.port}/v1; interrupt to stop", flush=True)
        url = f"http://{FLAGS.host}:{FLAGS.port}/v1"
        after = {"engine": url, "model": FLAGS.served_name, "tables": "TABLES", "tasks": "TASKS", "out": "OUT"}
        print(f"next: {common.command('python -m launch.collect', **after)}", flush=True)
        sys.exit(server.wait())
    finally:
        server.terminate()
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()


def _wait_until_healthy(server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + FLAGS.wait
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise DataError(f"the server stopped with exit code {server.returncode}; its own output above says why")
        try:
            if httpx.get(f"http://{FLAGS.host}:{FLAGS.port}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(1)
    raise DataError(f"the server did not answer within --wait={FLAGS.wait:.0f} s")


if __name__ == "__main__":
    common.run(main)
