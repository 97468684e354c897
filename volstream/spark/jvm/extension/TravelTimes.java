package volstream;

import java.util.HashMap;
import java.util.Map;
import java.util.TimeZone;
import org.apache.spark.sql.catalyst.analysis.RelationTimeTravel;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.FromUTCTimestamp;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.ToUTCTimestamp;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.TimestampType$;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.runtime.AbstractPartialFunction;

/**
 * Gives {@code TIMESTAMP AS OF} the right time where a session's zone is not that of the JVM.
 *
 * <p>Delta's catalog writes the time as text in the JVM's zone, which Delta then reads in the session's. Here the time is moved by
 * the difference before.
 */
final class TravelTimes extends Rule<LogicalPlan> {
    private static final String OPTION = "timestampAsOf";

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        String ours = TimeZone.getDefault().getID();
        String theirs = SQLConf$.MODULE$.get().sessionLocalTimeZone();
        if (ours.equals(theirs)) {
            return plan;
        }
        return (LogicalPlan) plan.transformWithSubqueries(new AbstractPartialFunction<>() {
            @Override
            public boolean isDefinedAt(LogicalPlan part) {
                return travel(part) != null;
            }

            @Override
            public <A extends LogicalPlan, B> B applyOrElse(A part, scala.Function1<A, B> otherwise) {
                RelationTimeTravel travel = travel(part);
                if (travel == null) {
                    return otherwise.apply(part);
                }
                Expression time = new Cast(travel.timestamp().get(), TimestampType$.MODULE$, Option.apply(theirs));
                Expression moved = new ToUTCTimestamp(new FromUTCTimestamp(time, text(theirs)), text(ours));
                return (B) travel.copy(travel.relation(), Option.apply(moved), travel.version());
            }
        });
    }

    /** Returns a relation at a time that was not moved yet, also one that has the time as an option; null: it is none. */
    private static RelationTimeTravel travel(LogicalPlan part) {
        if (part instanceof RelationTimeTravel travel
                && travel.timestamp().isDefined()
                && !(travel.timestamp().get() instanceof ToUTCTimestamp)) { // a call of the user's is not resolved yet
            return travel;
        }
        if (part instanceof UnresolvedRelation relation
                && relation.options().containsKey(OPTION)
                && !relation.options().containsKey("versionAsOf")) {
            Map<String, String> others = new HashMap<>(relation.options().asCaseSensitiveMap());
            others.keySet().removeIf(OPTION::equalsIgnoreCase);
            LogicalPlan now = relation.copy(
                    relation.multipartIdentifier(), new CaseInsensitiveStringMap(others), relation.isStreaming());
            return new RelationTimeTravel(now, Option.apply(text(relation.options().get(OPTION))), Option.empty());
        }
        return null;
    }

    private static Expression text(String value) {
        return Literal$.MODULE$.apply(value);
    }
}
