package volstream;

import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.execution.CacheManager;
import org.apache.spark.sql.execution.CachedData;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Drops cached rows of Delta tables that have changed since.
 *
 * <p>Spark's cache is one for all sessions, and for it a table is the same at each version: after a commit of another program,
 * every session and job would go on to read the rows that one of them has cached.
 */
final class FreshCaches extends Rule<LogicalPlan> {
    private final SparkSession session;

    FreshCaches(SparkSession session) {
        this.session = session;
    }

    /** Called before Spark looks for cached rows; returns the plan itself. */
    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        var classic = (org.apache.spark.sql.classic.SparkSession) session;
        CacheManager cache = classic.sharedState().cacheManager();
        if (cache.isEmpty()) {
            return plan;
        }
        Map<Path, Long> read = versions(plan);
        Set<LogicalPlan> stale = new LinkedHashSet<>();
        cache.useCachedData(plan, new AbstractFunction1<CachedData, Object>() {
            @Override
            public Object apply(CachedData cached) {
                Map<Path, Long> then = versions(cached.plan());
                if (then.entrySet().stream().anyMatch(table -> table.getValue() < read.getOrDefault(table.getKey(), 0L))) {
                    stale.add(cached.plan());
                }
                return false;
            }
        });
        stale.forEach(cached -> cache.uncacheQuery(classic, cached, true, false));
        return plan;
    }

    /** Returns the versions of the tables that a plan reads, except those it names. */
    private static Map<Path, Long> versions(LogicalPlan plan) {
        Map<Path, Long> found = new HashMap<>();
        note(plan, found);
        Seq<LogicalPlan> inside = (Seq<LogicalPlan>) (Seq<?>) plan.subqueriesAll();
        for (int at = 0; at < inside.length(); at++) {
            note(inside.apply(at), found);
        }
        return found;
    }

    private static void note(LogicalPlan plan, Map<Path, Long> found) {
        plan.foreach(new AbstractFunction1<LogicalPlan, BoxedUnit>() {
            @Override
            public BoxedUnit apply(LogicalPlan part) {
                TahoeLogFileIndex index = newest(part);
                if (index != null) {
                    found.merge(index.path(), index.snapshotAtAnalysis().version(), Math::max);
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
