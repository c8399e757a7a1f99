"""Start a server on the embedded models, then run the clients' tests against it in another environment's Python.

python tests/clients/run.py /path/to/venv/bin/python [pytest arguments]
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(python: str, *arguments: str) -> int:
    command = [sys.executable, "-m", "tokenrouter.cli", "serve", "algo=entropy", "models=tiny", "server.port=0"]
    server = subprocess.Popen([*command, "server.log=false"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        told = re.search(r"http://\S+", server.stdout.readline())
        if told is None:
            return 1
        return subprocess.run([python, "-m", "pytest", "-q", "tests/clients", *arguments], cwd=ROOT,
                              env=os.environ | {"OPENAI_BASE_URL": told[0]}).returncode
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
