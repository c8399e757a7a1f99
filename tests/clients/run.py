"""Start a server on the embedded models and run the clients against it: python tests/clients/run.py FOLDER [arguments]

FOLDER holds an environment for each client (`make clients` makes them). openai-python is tested from inside its own;
the others are commands. The arguments are pytest's.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/clients"


def main(folder: str, *arguments: str) -> int:
    command = [sys.executable, "-m", "tokenrouter.cli", "serve", "algo=r2r", "models=tiny", "server.port=0"]
    server = subprocess.Popen([*command, "server.log=false"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        told = re.search(r"http://\S+", server.stdout.readline())
        if told is None:
            return 1
        env = os.environ | {"OPENAI_BASE_URL": told[0], "TOKENROUTER_CLIENTS": str(Path(folder).resolve())}
        inside = str(Path(folder).resolve() / "openai" / "bin" / "python")
        codes = [subprocess.run([python, "-m", "pytest", "-q", *tests, *arguments], cwd=ROOT, env=env).returncode
                 for python, tests in ((inside, [f"{TESTS}/test_openai.py"]),
                                       (sys.executable, [TESTS, f"--ignore={TESTS}/test_openai.py"]))]
        return max(codes)
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
