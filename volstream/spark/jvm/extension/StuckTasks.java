package volstream;

import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.JobSucceeded$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Ends the JVM if a task of a cancelled job does not end: some functions, such as those with regular expressions, look at no
 * interruption, and would hold their slots for ever. The engine is started again, and jobs go on. Spark's own reaper of tasks does
 * this for executors, but not in local mode.
 */
public final class StuckTasks extends SparkListener {
    private static final int STATUS = 75;

    private final long graceSeconds;
    private final Map<Integer, Set<Integer>> stagesOfJobs = new ConcurrentHashMap<>();
    private final Map<Long, Integer> stageOfTasks = new ConcurrentHashMap<>();
    private final ScheduledExecutorService clock = Executors.newSingleThreadScheduledExecutor(work -> {
        Thread thread = new Thread(work, "volstream-stuck-tasks");
        thread.setDaemon(true);
        return thread;
    });

    /** Called by Spark. The setting is for tests. */
    public StuckTasks(SparkConf configuration) {
        graceSeconds = configuration.getLong("spark.volstream.stuckSeconds", 60);
    }

    @Override
    public void onJobStart(SparkListenerJobStart job) {
        Set<Integer> stages = ConcurrentHashMap.newKeySet();
        CollectionConverters.asJava(job.stageInfos()).forEach(stage -> stages.add(stage.stageId()));
        stagesOfJobs.put(job.jobId(), stages);
    }

    @Override
    public void onTaskStart(SparkListenerTaskStart task) {
        stageOfTasks.put(task.taskInfo().taskId(), task.stageId());
    }

    @Override
    public void onTaskEnd(SparkListenerTaskEnd task) {
        stageOfTasks.remove(task.taskInfo().taskId());
    }

    @Override
    public void onJobEnd(SparkListenerJobEnd job) {
        Set<Integer> stages = stagesOfJobs.remove(job.jobId());
        if (stages == null || job.jobResult() == JobSucceeded$.MODULE$) {
            return;
        }
        stagesOfJobs.values().forEach(stages::removeAll); // another job needs them
        for (Map.Entry<Long, Integer> task : stageOfTasks.entrySet()) {
            if (stages.contains(task.getValue())) {
                clock.schedule(() -> check(task.getKey()), graceSeconds, TimeUnit.SECONDS);
            }
        }
    }

    private void check(long task) {
        if (stageOfTasks.containsKey(task)) {
            System.err.println("Task " + task + " was cancelled, and has not ended after " + graceSeconds
                    + " seconds: the engine ends, and is started again.");
            Runtime.getRuntime().halt(STATUS);
        }
    }
}
