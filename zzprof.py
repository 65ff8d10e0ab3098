
import sys, os, signal, collections
sys.path.insert(0, os.getcwd())
from smb3server.cli.main import main
c = collections.Counter()
def prof(frame, event, arg):
    if event == "call":
        k = frame.f_code; c[(k.co_filename.split("/")[-1], k.co_name)] += 1
    elif event == "c_call":
        c[("C", getattr(arg, "__qualname__", str(arg)))] += 1
def begin(n, f):
    c.clear(); sys.setprofile(prof)
def end(n, f):
    sys.setprofile(None)
    p = os.environ["COUNTS"]
    open(p + ".l", "w").write(repr(dict(c)))
    calls = sum(v for (f, _), v in c.items() if f != "C"); cc = sum(v for (f, _), v in c.items() if f == "C")
    open(p + ".new", "w").write(f"{calls} {cc}"); os.rename(p + ".new", p)
signal.signal(signal.SIGUSR1, begin); signal.signal(signal.SIGUSR2, end)
sys.exit(main(sys.argv[1:]))
