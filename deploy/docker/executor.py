"""Becomes the executor that Spark asks a pod for by environment variables. Spark's own image has ``entrypoint.sh`` for that."""

import importlib.util
import os

_JAVA_OPTION = "SPARK_JAVA_OPT_"

spark = os.path.dirname(importlib.util.find_spec("pyspark").origin)
options = sorted((name for name in os.environ if name.startswith(_JAVA_OPTION)), key=lambda name: int(name[len(_JAVA_OPTION) :]))
memory = os.environ["SPARK_EXECUTOR_MEMORY"]
class_path = (os.environ["SPARK_CONF_DIR"], os.environ["SPARK_CLASSPATH"], f"{spark}/jars/*")
arguments = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
os.environ["SPARK_HOME"] = spark
os.execvp(
    "java",
    [
        "java",
        *(os.environ[name] for name in options),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(class_path),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *(part for name, variable in arguments.items() for part in (name, os.environ[variable])),
    ],
)
