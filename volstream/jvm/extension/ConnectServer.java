package volstream;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connect.service.SparkConnectService$;
import scala.Option;

/**
 * Serves Spark Connect, as Spark's own server does, but with the settings that it is given.
 *
 * <p>Spark's sets <code>spark.sql.artifact.isolation.enabled</code>, with which each session has Python workers of its own: the
 * first function of a session waits for the start of Python, and the process that forks its workers stays until the JVM ends.
 */
public final class ConnectServer {
    private ConnectServer() {}

    /** Serves until the JVM is asked to end. */
    public static void main(String[] arguments) {
        SparkSession session = SparkSession.builder().getOrCreate();
        try {
            SparkConnectService$.MODULE$.start(session.sparkContext());
            SparkConnectService$.MODULE$.server().awaitTermination();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        } finally {
            if (SparkConnectService$.MODULE$.started()) {
                SparkConnectService$.MODULE$.stop(Option.empty(), Option.empty());
            }
            session.stop();
        }
    }
}
