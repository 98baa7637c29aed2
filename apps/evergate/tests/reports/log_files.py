"""traefik#4295, #11342, #1696: the log file is renamed or deleted, its folder is removed, or the disk is
full.
"""

from report import *


def f():
    be = Backend(http=lambda q: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    p = free_port()
    e = Eg(site(p, [be.port]), logs=False)
    d = os.path.join(e.dir, "log")
    os.mkdir(d)
    e.log = os.path.join(d, "access.json")
    e.logs = True
    e.write(e.cfg)
    e.start()
    try:
        n = [0]

        def go(k=5):
            for i in range(k):
                n[0] += 1
                ask(p, "GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n[0])

        def seen(f):
            try:
                return [json.loads(l)["target"] for l in open(f)]
            except OSError:
                return []

        go()
        until(lambda: len(seen(e.log)) == 5)
        check(len(seen(e.log)) == 5, "5 lines")
        os.rename(e.log, e.log + ".1")
        go()
        check(until(lambda: len(seen(e.log + ".1")) == 10), "before the signal lines go to the renamed file")
        e.proc.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        go()
        check(until(lambda: len(seen(e.log)) == 5), "after SIGUSR1 to a new one (%d)" % len(seen(e.log)))
        for i in range(20):  # rotation under traffic
            th = threading.Thread(target=go, args=(10,))
            th.start()
            time.sleep(0.005)
            os.rename(e.log, "%s.r%d" % (e.log, i)) if os.path.exists(e.log) else None
            e.proc.send_signal(signal.SIGUSR1)
            th.join()
        time.sleep(0.7)
        al = []
        for x in os.listdir(d):
            al += seen(os.path.join(d, x))
        check(
            sorted(al) == sorted("/%d" % i for i in range(1, n[0] + 1)),
            "20 rotations under traffic: each request once (%d of %d)" % (len(set(al)), n[0]),
        )
        shutil.rmtree(d)
        e.proc.send_signal(signal.SIGUSR1)
        go()
        os.mkdir(d)
        check(
            until(lambda: (go(1), os.path.exists(e.log))[1], 5, 0.3),
            "the folder comes back: so does the log, without another signal",
        )
        f0 = e.fds()
        [e.proc.send_signal(signal.SIGUSR1) or time.sleep(0.05) for i in range(30)]
        time.sleep(0.5)
        check(e.fds() <= f0 + 1, "30 rotations leave no descriptor")
        r = e.cli("reload")
        check(r.returncode == 0, "reload works (%s)" % r.stderr)
    finally:
        note(e.stderr()[-700:])
        e.stop()
    # A full disk: requests are served, lost lines are counted, and the log continues afterwards.
    e = Eg(site(p, [be.port]), logs=False)
    e.cfg += '\n[logs]\naccess = "/dev/full"\n'
    e.write(e.cfg)
    e.start()
    try:
        ok = sum(ask(p, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").status == 200 for i in range(20))
        check(ok == 20, "a full disk: all are served")
        check(
            until(lambda: e.metric("evergate_log_lines_lost_total") == 20),
            "lines that are lost are counted (%d)" % e.metric("evergate_log_lines_lost_total"),
        )
    finally:
        e.stop()


main("the access log's file", f)
