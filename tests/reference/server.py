"""A `gossamer serve` on loopback, for the scripts beside it."""
import subprocess
import sys
import tempfile
import time
import urllib.request


class Server:
    """Ready inside `with`; `seconds` says how long that took. Ends the script, with the server's last lines, where it does not become ready."""

    def __init__(self, gossamer, model, port, *flags):
        self.url = f"http://127.0.0.1:{port}"
        self.command = [gossamer, "serve", model, "--port", str(port), *flags]

    def __enter__(self):
        begun = time.monotonic()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=self.log)
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() - begun > 600:
                self.process.kill()
                self.log.seek(0)
                sys.exit("the server ended or was not ready after ten minutes:\n" + "".join(self.log.readlines()[-5:]))
            time.sleep(0.05)
        self.seconds = time.monotonic() - begun
        return self

    def is_ready(self):
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200
        except OSError:
            return False

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
