"""A Slurm cluster of one machine, in a folder of its own and on free ports:

    with Cluster(folder) as slurm:
        slurm.call("sbatch", "--wait", ...)"""
import os
import pwd
import shutil
import socket
import subprocess
import time

PROGRAMS = "munged", "slurmctld", "slurmd", "sbatch", "scontrol"
CONF = """\
ClusterName=throwaway
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ctl}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctl.pid
SlurmdPidFile={folder}/node.pid
SlurmctldLogFile={folder}/ctl.log
SlurmdLogFile={folder}/node.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def lacks():
    """The reason why there can be no cluster here, or None."""
    where = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for name in PROGRAMS:
        if not shutil.which(name, path=where):
            return f"{name} is not installed (packages slurm-wlm, munge)"
    if os.geteuid():
        return "Slurm's daemons want root"
    return None


def free_ports(n):
    taken = [socket.socket() for _ in range(n)]
    for s in taken:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in taken]
    for s in taken:
        s.close()
    return ports


class Cluster:
    def __init__(self, folder):
        self.folder, self.started = folder, []
        self.conf = os.path.join(folder, "slurm.conf")
        self.env = {**os.environ, "SLURM_CONF": self.conf,
                    "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}

    def start(self, *command, **more):
        with open(os.path.join(self.folder, "daemons.log"), "ab") as log:
            self.started.append(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.env, **more))

    def munge(self):
        """Runs as its own user, and only that user may reach its folder."""
        place = os.path.join(self.folder, "munge")
        user = pwd.getpwnam("munge")
        os.mkdir(place, 0o711)
        key = os.path.join(place, "key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o400), "wb") as f:
            f.write(os.urandom(128))
        for path in place, key:
            os.chown(path, user.pw_uid, user.pw_gid)
        self.start("munged", "--foreground", "--key-file", key, *(
            f"--{what}={place}/{what.split('-')[0]}" for what in
            ("socket", "pid-file", "log-file", "seed-file")),
            user="munge", group="munge", extra_groups=[])

    def __enter__(self):
        try:
            ctl, node = free_ports(2)
            host = socket.gethostname().split(".")[0]
            with open(self.conf, "w") as f:
                f.write(CONF.format(folder=self.folder, host=host, ctl=ctl,
                                    node=node))
            for name in "state", "spool":
                os.mkdir(os.path.join(self.folder, name))
            os.chmod(self.folder, 0o755)
            self.munge()
            self.wait_for(lambda: os.path.exists(
                os.path.join(self.folder, "munge", "socket")))
            self.start("slurmctld", "-D", "-c", "-f", self.conf)
            self.start("slurmd", "-D", "-f", self.conf, "-N", host)
            self.wait_for(lambda: "idle" in self.call(
                "sinfo", "-h", "-o", "%T", code=None))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Jobs first: their processes outlive the daemons."""
        end = time.monotonic() + 10
        while self.call("squeue", "-h", code=None, timeout=10).strip() and \
                time.monotonic() < end:
            self.call("scancel", "--user=root", code=None, timeout=10)
            time.sleep(0.1)
        for p in reversed(self.started):
            p.terminate()
        for p in reversed(self.started):
            try:
                p.wait(timeout=5)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()

    def wait_for(self, done, seconds=90):
        end = time.monotonic() + seconds
        while not done():
            dead = [p.args[0] for p in self.started if p.poll() is not None]
            if dead or time.monotonic() > end:
                logs = ""
                for name in "daemons.log", "ctl.log", "node.log":
                    path = os.path.join(self.folder, name)
                    if os.path.exists(path):
                        with open(path, errors="replace") as f:
                            logs += "".join(f.readlines()[-15:])
                raise AssertionError(f"{dead or 'too slow'}:\n{logs}")
            time.sleep(0.02)

    def call(self, *command, code=0, env=None, **more):
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT,
                              env={**self.env, **(env or {})}, **more)
        if code is not None and done.returncode != code:
            raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}")
        return done.stdout
