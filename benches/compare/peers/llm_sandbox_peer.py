"""llm-sandbox: its interactive session, which is an IPython in a container that is driven by files."""

import importlib.metadata
import logging
import subprocess
import warnings

from adapter import Adapter, Cannot, serve

warnings.simplefilter("ignore")

# In a container that it did not make it expects a Python environment in each session's directory. It installs ipython there by pip, which finds that the
# image has it.
PREPARE = """
set -e
python3 -m venv --system-site-packages --without-pip /tmp/sandboxes/venv
printf '#!/bin/sh\\nexec /tmp/sandboxes/venv/bin/python -m pip "$@"\\n' > /tmp/sandboxes/venv/bin/pip
chmod +x /tmp/sandboxes/venv/bin/pip
for number in $(seq 200); do mkdir /tmp/sandboxes/$number; ln -s ../venv /tmp/sandboxes/$number/.sandbox-venv; done
"""


class LlmSandbox(Adapter):
    note = "an interactive session in the container that all use"

    def __init__(self, target):
        super().__init__(target)
        if target["kind"] != "docker":
            raise Cannot("it runs code in containers only (docker, podman, kubernetes); its local backends keep no interpreter")
        logging.disable(logging.WARNING)
        subprocess.run(["docker", "exec", "-i", self.container, "sh"], input=PREPARE, text=True, check=True)
        self.made = 0

    @staticmethod
    def version():
        return importlib.metadata.version("llm-sandbox")

    def spawn(self):
        from llm_sandbox import InteractiveSandboxSession

        self.made += 1
        session = InteractiveSandboxSession(container_id=self.container, workdir="/tmp/sandboxes/%d" % self.made, max_memory=None)
        session.open()
        return session

    def run(self, kernel, code):
        answer = kernel.run(code)
        if answer.exit_code:
            raise RuntimeError(answer.stderr[-500:] or answer.stdout[-500:])
        return answer.stdout

    def stop(self, kernel):
        kernel.close()

    def close(self):
        for kernel in self.kernels:
            if kernel is not None:
                kernel.close()


if __name__ == "__main__":
    serve(LlmSandbox)
