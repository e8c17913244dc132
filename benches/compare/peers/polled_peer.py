"""The polled protocol that farcell's design started from: request and reply are files, each step is a command, and both sides look again after a while.

The host ships a request by one command (under another name, then renamed), looks for the reply with a command every 0.5 s, first after 0.5 s, reads it
with one and removes it with one. The runner looks for requests every 0.2 s. Over ssh its commands share a connection, as its users' did.
"""

import json
import shlex
import shutil
import subprocess
import tempfile
import time
import uuid

from adapter import Adapter, serve

HOST_POLL = 0.5
RUNNER = """
import contextlib, io, json, os, sys, time
RUNNER_POLL = 0.2
os.chdir(sys.argv[1])
names = {"__name__": "__main__"}
while os.path.exists("."):
    for name in sorted(n for n in os.listdir(".") if n.startswith("req_") and n.endswith(".json")):
        with open(name, encoding="utf-8") as request:
            code = json.load(request)["code"]
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            exec(code, names)
        reply = name.replace("req_", "res_")
        with open(reply + ".tmp", "w", encoding="utf-8") as out:
            json.dump({"stdout": text.getvalue()}, out)
        os.rename(reply + ".tmp", reply)
        os.remove(name)
    time.sleep(RUNNER_POLL)
"""


class Polled(Adapter):
    note = "0.5 s host poll, 0.2 s runner poll, one command per step"

    def __init__(self, target):
        super().__init__(target)
        self.control = None
        if target["kind"] == "ssh":
            self.control = tempfile.mkdtemp(prefix="cm")
            self._step("true")

    @staticmethod
    def version():
        return "as it was"

    def spawn(self):
        directory = "%s/polled-%s" % (self.target.get("base") or "/tmp", uuid.uuid4().hex)
        self._step("mkdir -m 700 %s && cat > %s/runner.py" % (directory, directory), RUNNER)
        started = "cd %s && (exec nohup %s runner.py %s >log 2>&1 </dev/null & echo $! >pid)" % (directory, self.target["python"], directory)
        self._step(started)
        return {"directory": directory, "number": 0}

    def run(self, kernel, code):
        kernel["number"] += 1
        place = "%s/%%s_%06d.json" % (kernel["directory"], kernel["number"])
        request, reply = place % "req", place % "res"
        self._step("cat > %s.tmp && mv %s.tmp %s" % (request, request, request), json.dumps({"code": code}))
        time.sleep(HOST_POLL)
        while self._step("test -e %s" % reply, check=False).returncode != 0:
            time.sleep(HOST_POLL)
        answer = self._step("cat %s" % reply).stdout
        self._step("rm %s" % reply)
        return json.loads(answer)["stdout"]

    def stop(self, kernel):
        self._step("kill $(cat %s/pid); rm -r %s" % (kernel["directory"], kernel["directory"]))

    def close(self):
        try:
            for kernel in self.kernels:
                if kernel is not None:
                    self.stop(kernel)
        finally:
            if self.control:
                subprocess.run([*self._ssh(), "-O", "exit", self.target["host"]], stderr=subprocess.DEVNULL)
                shutil.rmtree(self.control, ignore_errors=True)

    def _ssh(self):
        return ["ssh", "-F", self.target["config"], "-o", "ControlMaster=auto", "-o", "ControlPersist=600", "-S", self.control + "/s"]

    def _step(self, script, stdin="", check=True):
        if self.target["kind"] == "ssh":
            argv = [*self._ssh(), "-T", self.target["host"], shlex.join(["sh", "-c", script])]
        elif self.target["kind"] == "docker":
            argv = ["docker", "exec", "-i", self.target["container"], "sh", "-c", script]
        else:
            argv = ["sh", "-c", script]
        # stderr goes through: of a shared connection's master it would never end.
        return subprocess.run(argv, input=stdin, text=True, stdout=subprocess.PIPE, check=check)


if __name__ == "__main__":
    serve(Polled)
