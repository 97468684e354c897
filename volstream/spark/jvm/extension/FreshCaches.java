package volstream;

import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.delta.SnapshotDescriptor;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.execution.CacheManager;
import org.apache.spark.sql.execution.CachedData;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Drops cached rows of Delta tables that have changed since.
 *
 * <p>Spark's cache is one for all sessions, and for it a table is the same at each version: after a commit of another program,
 * every session and job would go on to read the rows that one of them has cached.
 */
final class FreshCaches extends Rule<LogicalPlan> {
    /** Spark calls the rule for the plans to drop, too. */
    private static final ThreadLocal<Boolean> DROPPING = ThreadLocal.withInitial(() -> false);

    private final SparkSession session;

    FreshCaches(SparkSession session) {
        this.session = session;
    }

    /** Called before Spark looks for cached rows; returns the plan itself. */
    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        var classic = (org.apache.spark.sql.classic.SparkSession) session;
        CacheManager cache = classic.sharedState().cacheManager();
        if (cache.isEmpty() || DROPPING.get()) {
            return plan;
        }
        Map<Path, SnapshotDescriptor> present = new HashMap<>();
        note(plan, index -> present.computeIfAbsent(index.path(), path -> index.getSnapshot()));
        Set<LogicalPlan> stale = new LinkedHashSet<>();
        cache.useCachedData(plan, new AbstractFunction1<CachedData, Object>() {
            @Override
            public Object apply(CachedData cached) {
                note(cached.plan(), index -> {
                    SnapshotDescriptor now = present.get(index.path());
                    SnapshotDescriptor then = index.snapshotAtAnalysis();
                    if (now != null
                            && (then.version() < now.version() || !then.metadata().id().equals(now.metadata().id()))) {
                        stale.add(cached.plan());
                    }
                });
                return false;
            }
        });
        DROPPING.set(true);
        try {
            stale.forEach(cached -> cache.uncacheQuery(classic, cached, true, false));
        } finally {
            DROPPING.set(false);
        }
        return plan;
    }

    /** Passes on the files of each table that a plan reads, except those with a version. */
    private static void note(LogicalPlan plan, Consumer<TahoeLogFileIndex> found) {
        plan.foreachWithSubqueries(new AbstractFunction1<LogicalPlan, BoxedUnit>() {
            @Override
            public BoxedUnit apply(LogicalPlan part) {
                TahoeLogFileIndex index = newest(part);
                if (index != null) {
                    found.accept(index);
                }
                return BoxedUnit.UNIT;
            }
        });
    }

    /** Returns the files of a relation of a Delta table without a version; null: it is something else. */
    private static TahoeLogFileIndex newest(LogicalPlan part) {
        return part instanceof LogicalRelation relation
                        && relation.relation() instanceof HadoopFsRelation files
                        && files.location() instanceof TahoeLogFileIndex index
                        && !index.isTimeTravelQuery()
                ? index
                : null;
    }
}
