package volstream;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.ExpressionWithUnresolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedNamespace;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTable;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableOrView;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.parser.ParameterContext;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Product;
import scala.Tuple3;
import scala.collection.Iterable;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Parses statements that may only read certain relations, and refuses the others before Spark analyses them: to find a
 * relation's columns, the analyser opens the files of a path and calls the server of a URL.
 *
 * <p>Such a text ends with the line {@code VOLSTREAM READS} and one line for each relation that it may read. A server without
 * this parser takes that for a syntax error, and so runs nothing unguarded.
 */
final class GuardedParser implements ParserInterface {
    private static final String GUARD = "\nVOLSTREAM READS\n";

    /** Steps of queries that only compute, and statements that describe objects of the catalog; as Spark parses them. */
    private static final Set<String> HARMLESS = Set.of(
            "Aggregate", "AsOfJoin", "CurrentNamespace", "Deduplicate", "DescribeColumn", "DescribeDeltaDetailCommand",
            "DescribeDeltaHistory", "DescribeFunction", "DescribeNamespace", "DescribeQueryCommand", "DescribeRelation",
            "DescribeRelationJsonCommand", "DescribeTablePartition", "Distinct", "Except", "Expand", "Filter", "Generate",
            "GlobalLimit", "Intersect", "Join", "LateralJoin", "LimitAll", "LocalLimit", "LocalRelation", "Offset",
            "OneRowRelation", "PipeOperator", "Pivot", "Project", "RebalancePartitions", "RelationTimeTravel",
            "Repartition", "RepartitionByExpression", "Sample", "ShowCatalogsCommand", "ShowCollationsCommand",
            "ShowColumns", "ShowCreateTable", "ShowCurrentNamespaceCommand", "ShowFunctions", "ShowNamespacesCommand",
            "ShowPartitions", "ShowTableProperties", "ShowTables", "ShowTablesExtended", "ShowViews", "Sort",
            "SubqueryAlias", "Tail", "Union", "Unpivot", "UnresolvedFunctionName", "UnresolvedHaving", "UnresolvedHint",
            "UnresolvedInlineTable", "UnresolvedQualify", "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases",
            "Window", "WithWindowDefinition");

    /** Functions that return tables computed from their arguments. */
    private static final Set<String> TABLE_FUNCTIONS = Set.of(
            "collations", "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode",
            "posexplode_outer", "range", "sql_keywords", "stack", "variant_explode", "variant_explode_outer");

    private final ParserInterface delegate;

    GuardedParser(ParserInterface delegate) {
        this.delegate = delegate;
    }

    @Override
    public LogicalPlan parsePlan(String text) throws ParseException {
        Guarded guarded = guarded(text);
        return guarded == null ? delegate.parsePlan(text) : guarded.check(delegate.parsePlan(guarded.text));
    }

    @Override
    public LogicalPlan parsePlanWithParameters(String text, ParameterContext parameters) throws ParseException {
        Guarded guarded = guarded(text);
        return guarded == null
                ? delegate.parsePlanWithParameters(text, parameters)
                : guarded.check(delegate.parsePlanWithParameters(guarded.text, parameters));
    }

    @Override
    public LogicalPlan parseQuery(String text) throws ParseException {
        Guarded guarded = guarded(text);
        return guarded == null ? delegate.parseQuery(text) : guarded.check(delegate.parseQuery(guarded.text));
    }

    @Override
    public Expression parseExpression(String text) throws ParseException {
        Guarded guarded = guarded(text);
        return guarded == null ? delegate.parseExpression(text) : guarded.check(delegate.parseExpression(guarded.text));
    }

    @Override
    public TableIdentifier parseTableIdentifier(String text) throws ParseException {
        return delegate.parseTableIdentifier(text);
    }

    @Override
    public FunctionIdentifier parseFunctionIdentifier(String text) throws ParseException {
        return delegate.parseFunctionIdentifier(text);
    }

    @Override
    public Seq<String> parseMultipartIdentifier(String text) throws ParseException {
        return delegate.parseMultipartIdentifier(text);
    }

    @Override
    public StructType parseTableSchema(String text) throws ParseException {
        return delegate.parseTableSchema(text);
    }

    @Override
    public DataType parseDataType(String text) throws ParseException {
        return delegate.parseDataType(text);
    }

    @Override
    public StructType parseRoutineParam(String text) throws ParseException {
        return delegate.parseRoutineParam(text);
    }

    /** Returns a guarded statement; null: it has no guard, although one of its texts may look like it. */
    private Guarded guarded(String text) {
        int at = text.lastIndexOf(GUARD);
        if (at < 0) {
            return null;
        }
        Set<List<String>> relations = new HashSet<>();
        for (String line : text.substring(at + GUARD.length()).split("\n")) {
            if (!line.isEmpty()) {
                try {
                    relations.add(parts(delegate.parseMultipartIdentifier(line)));
                } catch (ParseException error) {
                    return null;
                }
            }
        }
        return new Guarded(text.substring(0, at), relations);
    }

    private static List<String> parts(Seq<String> name) {
        return CollectionConverters.asJava(name).stream().map(part -> part.toLowerCase(Locale.ROOT)).toList();
    }

    /** A part of a statement, and the names of common table expressions that it sees. */
    private record Part(Object value, Set<String> expressions) {}

    /** A statement without its guard, and the relations that it may read. */
    private record Guarded(String text, Set<List<String>> relations) {

        /** Returns what was parsed; with a stack of its own, because statements can be nested deeply. */
        <T> T check(T parsed) {
            Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
            Deque<Part> waiting = new ArrayDeque<>(List.of(new Part(parsed, Set.of())));
            while (!waiting.isEmpty()) {
                Part part = waiting.pop();
                if (!(part.value instanceof Product || part.value instanceof Iterable) || !seen.add(part.value)) {
                    continue;
                }
                if (part.value instanceof UnresolvedWith with) {
                    addExpressions(with, part.expressions, waiting);
                    continue;
                }
                if (part.value instanceof LogicalPlan plan) {
                    checkStep(plan, part.expressions);
                    CollectionConverters.asJava(plan.children()).forEach(child -> waiting.push(new Part(child, part.expressions)));
                } else if (part.value instanceof ExpressionWithUnresolvedIdentifier) {
                    throw refusal("IDENTIFIER with a computed name is not allowed here.");
                } else if (part.value instanceof Expression expression) {
                    CollectionConverters.asJava(expression.children())
                            .forEach(child -> waiting.push(new Part(child, part.expressions)));
                }
                var inside = part.value instanceof Iterable<?> several
                        ? several.iterator()
                        : ((Product) part.value).productIterator();
                while (inside.hasNext()) {
                    waiting.push(new Part(inside.next(), part.expressions));
                }
            }
            return parsed;
        }

        /** An expression sees those before it, and itself if it is recursive; the query sees all. */
        private static void addExpressions(UnresolvedWith with, Set<String> outer, Deque<Part> waiting) {
            Set<String> visible = new HashSet<>(outer);
            for (Tuple3<String, SubqueryAlias, Option<Object>> expression :
                    CollectionConverters.asJava(with.cteRelations())) {
                String name = expression._1().toLowerCase(Locale.ROOT);
                Set<String> own = new HashSet<>(visible);
                if (with.allowRecursion()) {
                    own.add(name);
                }
                waiting.push(new Part(expression._2(), own));
                visible.add(name);
            }
            waiting.push(new Part(with.child(), visible));
        }

        private void checkStep(LogicalPlan plan, Set<String> expressions) {
            if (plan instanceof UnresolvedRelation relation) {
                if (!relation.options().isEmpty() || relation.isStreaming()) {
                    throw refusal("STREAM and options of a relation are not allowed here.");
                }
                checkRelation(relation.multipartIdentifier(), expressions);
            } else if (plan instanceof UnresolvedTable table) {
                checkRelation(table.multipartIdentifier(), Set.of());
            } else if (plan instanceof UnresolvedTableOrView table) {
                checkRelation(table.multipartIdentifier(), Set.of());
            } else if (plan instanceof UnresolvedNamespace namespace) {
                checkNamespace(parts(namespace.multipartIdentifier()));
            } else if (plan instanceof UnresolvedTableValuedFunction function) {
                List<String> name = parts(function.name());
                if (name.size() > 1 || !TABLE_FUNCTIONS.contains(name.get(0)) || function.isStreaming()) {
                    throw refusal("The table function " + String.join(".", name) + " is not allowed here.");
                }
            } else if (!HARMLESS.contains(plan.getClass().getSimpleName().replace("$", ""))) {
                throw refusal("A statement with " + plan.getClass().getSimpleName() + " cannot run here; use volstream sql.");
            }
        }

        private void checkRelation(Seq<String> name, Set<String> expressions) {
            List<String> parts = parts(name);
            List<String> local = parts.size() == 3 && parts.get(0).equals("spark_catalog") ? parts.subList(1, 3) : parts;
            boolean isExpression = parts.size() == 1 && expressions.contains(parts.get(0));
            if (!isExpression && !relations.contains(local)) {
                throw refusal(String.join(".", CollectionConverters.asJava(name))
                        + " is not a table, stream or directory of this home. Only these can be read here; use volstream sql.");
            }
        }

        private static void checkNamespace(List<String> name) {
            List<String> parts = new ArrayList<>(name);
            if (parts.size() == 2 && parts.get(0).equals("spark_catalog")) {
                parts.remove(0);
            }
            // Spark takes the first part for a catalog, if there is one.
            if (parts.size() > 1
                    || (!parts.isEmpty() && !parts.get(0).equals("spark_catalog")
                            && SQLConf$.MODULE$.get().contains("spark.sql.catalog." + parts.get(0)))) {
                throw refusal(String.join(".", name) + " is not a schema of this home.");
            }
        }
    }

    private static RuntimeException refusal(String message) {
        return NoReflection.refusal(message);
    }
}
