"""Spark sorts on an emulated network, with and without `anabranch shuffle`; ``run.py spark`` runs this in the control site.

The master and the driver run in the control site, and one worker with one executor on each host.
The sorts of all trials are jobs of one application, because the application's start takes longer
than they do. The coordinator and the agents are started before each sort with `shuffle`, and ended
after it. Flows are announced by a rule on the block
managers' port. Times come from Spark's event log. Needs ``pyspark`` and Java 17. Read `main` and
`jobs_of` first.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

#: Port on which executors serve shuffle data; the driver has a different port, so rules ignore it.
BLOCKS_PORT = 7337
RULES = f"[[rule]]\nlocal_port = {BLOCKS_PORT}\ncoflow = 'spark-{{remote_host}}'\n"
Row = dict[str, Any]


def in_site(site: str, command: list[str], log: pathlib.Path, **more: str) -> subprocess.Popen[bytes]:
    """Start a program in a site, bound to the site's address."""
    key = site.upper()
    address = os.environ[f"ANABRANCH_ADDRESS_{key}"]
    environment = {**os.environ, "SPARK_LOCAL_IP": address, **more}
    words = ["nsenter", f"--net={os.environ[f'ANABRANCH_NETNS_{key}']}", *command]
    return subprocess.Popen(words, env=environment, stdout=log.open("ab"), stderr=subprocess.STDOUT)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to the processes, and wait until they have ended."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_shuffle(task: Row, folder: pathlib.Path, arm: str) -> list[subprocess.Popen[bytes]]:
    """Start the coordinator and an agent on each host, and check 1.5 s later that all are connected."""
    keys, control = str(folder / "keys"), os.environ["ANABRANCH_ADDRESS_CONTROL"]
    (folder / "rules.toml").write_text(RULES)
    (folder / "coordinator.redb").unlink(missing_ok=True)
    command = [task["binary"], "-q", "shuffle", "coordinator", "--listen", f"{control}:7190", "--keys", keys]
    command += ["--allocator", arm, "--store", str(folder / "coordinator.redb")]
    processes = [in_site("control", command, folder / "coordinator.log")]
    time.sleep(0.5)
    for n in range(task["hosts"]):
        command = [task["binary"], "-q", "shuffle", "agent", "--name", f"h{n}", "--keys", keys]
        command += ["--coordinator", f"https://{control}:7190", "--link", task["link"]]
        command += ["--address", os.environ[f"ANABRANCH_ADDRESS_H{n}"], "--rules", str(folder / "rules.toml")]
        command += ["--state", str(folder / f"h{n}.state")]
        processes.append(in_site(f"h{n}", command, folder / f"agent-h{n}.log"))
    time.sleep(1.5)
    see_to(task, folder, processes)
    return processes


def see_to(task: Row, folder: pathlib.Path, processes: list[subprocess.Popen[bytes]], coflows: int = 0) -> None:
    """Check that the processes run, that all agents are connected, and that the coordinator knows
    at least `coflows` coflows.

    Raises
    ------
    SystemExit
        One of these conditions does not hold.
    """
    for process in processes:
        if process.poll() is not None:
            raise SystemExit(f"spark.py: {' '.join(process.args)} ended: see the logs in {folder}")
    ask = [task["binary"], "shuffle", "status", "--json", "--history", "1000", "--keys", str(folder / "keys")]
    ask += ["--coordinator", f"https://{os.environ['ANABRANCH_ADDRESS_CONTROL']}:7190"]
    status = json.loads(subprocess.run(ask, check=True, stdout=subprocess.PIPE).stdout)
    away = [host["name"] for host in status["hosts"] if not host["up"]]
    heard = {coflow["name"] for coflow in status["history"] + status["coflows"]}
    if away or len(status["hosts"]) < task["hosts"] or len(heard) < coflows:
        raise SystemExit(f"spark.py: {away or 'none'} away of {len(status['hosts'])} hosts, {len(heard)} coflows")


def main(task: Row) -> None:
    """Start the cluster, sort once to warm up, and then once for each trial and arm."""
    import pyspark
    from pyspark.sql import SparkSession

    folder = pathlib.Path(task["folder"])
    home = pathlib.Path(pyspark.__file__).parent
    control = os.environ["ANABRANCH_ADDRESS_CONTROL"]
    memory = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_HOME": str(home), "SPARK_NO_DAEMONIZE": "1"}
    launch = [str(home / "bin/spark-class"), "org.apache.spark.deploy"]
    master = [launch[0], f"{launch[1]}.master.Master", "--host", control, "--port", "7077", "--webui-port", "8080"]
    cluster = [in_site("control", master, folder / "master.log", **memory)]
    shuffle: list[subprocess.Popen[bytes]] = []
    try:
        time.sleep(6)
        for n in range(task["hosts"]):
            command = [
                launch[0],
                f"{launch[1]}.worker.Worker",
                f"spark://{control}:7077",
                "--cores",
                "1",
                "--memory",
                "600m",
            ]
            command += [
                "--host",
                os.environ[f"ANABRANCH_ADDRESS_H{n}"],
                "--webui-port",
                "0",
                "-d",
                str(folder / f"work-h{n}"),
            ]
            cluster.append(in_site(f"h{n}", command, folder / f"worker-h{n}.log", **memory))
        settings = {
            "spark.driver.host": control,
            "spark.driver.bindAddress": control,
            "spark.driver.memory": "512m",
            "spark.driver.blockManager.port": str(BLOCKS_PORT + 1),
            "spark.blockManager.port": str(BLOCKS_PORT),
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": str(task["hosts"]),
            # The first sort begins once all executors are registered.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
            "spark.locality.wait": "0s",
            "spark.network.timeout": "300s",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{folder}/events",
            "spark.local.dir": str(folder / "local"),
            "spark.shuffle.compress": "false",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": str(task["hosts"] * task["reducers"]),
        }
        (folder / "events").mkdir()
        os.environ["SPARK_LOCAL_IP"] = control
        builder = SparkSession.builder.master(f"spark://{control}:7077").appName("sort")
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("WARN")
        # Random keys and 128 bytes of payload; the sorted rows are not stored.
        columns = ["rand(1) as key", "sha2(cast(id as string), 512) as payload"]
        rows = session.range(0, task["records"], 1, task["hosts"] * task["tasks"]).selectExpr(*columns)

        def sort(group: str) -> None:
            session.sparkContext.setJobGroup(group, group)
            rows.sort("key").write.format("noop").mode("overwrite").save()

        sort("warm-up")
        for trial in range(task["trials"]):
            for arm in task["arms"]:
                shuffle = start_shuffle(task, folder, arm) if arm != "without" else []
                sort(f"{arm} {trial}")
                if shuffle:
                    # The rule makes one coflow for each host.
                    see_to(task, folder, shuffle, task["hosts"])
                end(shuffle)
                shuffle = []
                print(f"spark.py: {arm} {trial} is done", file=sys.stderr, flush=True)
        session.stop()
    finally:
        end(shuffle)
        end(list(reversed(cluster)))


def jobs_of(log: pathlib.Path) -> list[Row]:
    """Results of each group of jobs in Spark's event log: the last stage of a group's last job
    reads the shuffle."""
    groups: dict[str, Row] = {}
    group_of_job: dict[int, str] = {}
    stages: dict[int, Row] = {}
    tasks: dict[int, list[Row]] = {}
    for line in log.open():
        event = json.loads(line)
        kind = event["Event"]
        if kind == "SparkListenerJobStart":
            group = event["Properties"]["spark.jobGroup.id"]
            group_of_job[event["Job ID"]] = group
            known = groups.setdefault(group, {"begun_ms": event["Submission Time"], "stages": []})
            known["stages"] = event["Stage IDs"]
        elif kind == "SparkListenerJobEnd":
            groups[group_of_job[event["Job ID"]]]["ended_ms"] = event["Completion Time"]
        elif kind == "SparkListenerStageCompleted":
            stages[event["Stage Info"]["Stage ID"]] = event["Stage Info"]
        elif kind == "SparkListenerTaskEnd":
            tasks.setdefault(event["Stage ID"], []).append(event)
    rows = []
    for group, known in groups.items():
        if group == "warm-up":
            continue
        reads = max(known["stages"])
        stage = stages[reads]
        read = [task["Task Metrics"]["Shuffle Read Metrics"] for task in tasks[reads]]
        arm, trial = group.split()
        rows.append({
            "arm": arm,
            "trial": int(trial),
            "job_s": (known["ended_ms"] - known["begun_ms"]) / 1e3,
            "shuffle_s": (stage["Completion Time"] - stage["Submission Time"]) / 1e3,
            "fetch_wait_mean_s": round(sum(r["Fetch Wait Time"] for r in read) / len(read) / 1e3, 4),
            "remote_bytes": sum(r["Remote Bytes Read"] for r in read),
            "tasks": len(read),
            "failed_tasks": sum(task["Task End Reason"]["Reason"] != "Success" for task in tasks[reads]),
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
