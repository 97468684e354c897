package volstream;

import java.util.Map;
import java.util.function.Supplier;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.TimeWindow;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import scala.Function1;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map.Map1;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractFunction2;
import scala.runtime.BoxedUnit;

/**
 * Leaves Spark's built-in functions nothing but computing: no Java methods, no files, no network.
 *
 * <p>Those that call any Java method are removed. Those that can open a path or a URL refuse one when they are called, before
 * the analyser or the optimiser computes constants. XML from others fetches no document type.
 *
 * <p>Spark applies the classes in spark.sql.extensions before the first session copies the built-in functions.
 * <code>python -m tests.extension</code> compiles this file into the jar beside it.
 */
public final class NoReflection extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    private static final String[] NAMES = {"reflect", "try_reflect", "java_method"};

    /** Functions with the option that names a file. */
    private static final Map<String, String> OPTIONS = Map.of(
            "from_xml", "rowValidationXSDPath",
            "schema_of_xml", "rowValidationXSDPath",
            "from_avro", "avroSchemaUrl",
            "schema_of_avro", "avroSchemaUrl");

    /** Functions whose third argument, if it is text, names a file; as binary it is the content. */
    private static final String[] DESCRIBED = {"from_protobuf", "to_protobuf"};

    private static final int MAX_WINDOWS = 1000;

    @Override
    public BoxedUnit apply(SparkSessionExtensions extensions) {
        for (String name : NAMES) {
            FunctionRegistry.builtin().dropFunction(identifier(name));
        }
        OPTIONS.forEach((name, option) -> replace(name, (arguments, made) -> checkOptions(name, option, arguments)));
        for (String name : DESCRIBED) {
            replace(name, (arguments, made) -> checkDescriptor(name, arguments));
        }
        replace("window", (arguments, made) -> checkWindow(made));
        extensions.injectParser(new AbstractFunction2<SparkSession, ParserInterface, ParserInterface>() {
            @Override
            public ParserInterface apply(SparkSession session, ParserInterface delegate) {
                return new GuardedParser(delegate);
            }
        });
        // After common table expressions are in their places, and before relations are looked up.
        extensions.injectHintResolutionRule(new AbstractFunction1<SparkSession, Rule<LogicalPlan>>() {
            @Override
            public Rule<LogicalPlan> apply(SparkSession session) {
                return new TravelTimes();
            }
        });
        extensions.injectPlanNormalizationRule(new AbstractFunction1<SparkSession, Rule<LogicalPlan>>() {
            @Override
            public Rule<LogicalPlan> apply(SparkSession session) {
                return new FreshCaches(session);
            }
        });
        extensions.injectPostHocResolutionRule(new AbstractFunction1<SparkSession, Rule<LogicalPlan>>() {
            @Override
            public Rule<LogicalPlan> apply(SparkSession session) {
                return new ValueLimits();
            }
        });
        // Those of xpath read the document type of a text, and with it any file or URL.
        System.setProperty("javax.xml.accessExternalDTD", "");
        System.setProperty("javax.xml.accessExternalSchema", "");
        return BoxedUnit.UNIT;
    }

    private interface Check {
        void of(Seq<Expression> arguments, Supplier<Expression> made);
    }

    private static FunctionIdentifier identifier(String name) {
        return FunctionRegistry$.MODULE$.builtinFunctionIdentifier(name);
    }

    private static void replace(String name, Check check) {
        Option<Tuple2<ExpressionInfo, Function1<Seq<Expression>, Expression>>> found =
                FunctionRegistry.builtin().lookupFunctionEntry(identifier(name));
        if (found.isEmpty()) {
            return;
        }
        Function1<Seq<Expression>, Expression> original = found.get()._2();
        FunctionRegistry.builtin().dropFunction(identifier(name)); // Spark warns of functions that are replaced
        FunctionRegistry.builtin().registerFunction(identifier(name), found.get()._1(), new AbstractFunction1<>() {
            @Override
            public Expression apply(Seq<Expression> arguments) {
                check.of(arguments, () -> original.apply(arguments));
                return original.apply(arguments);
            }
        });
    }

    private static void checkOptions(String name, String option, Seq<Expression> arguments) {
        for (int at = 0; at < arguments.length(); at++) {
            Expression argument = arguments.apply(at);
            if (argument.foldable() && argument.dataType() instanceof MapType map && map.keyType() instanceof StringType) {
                MapData options = (MapData) argument.eval(InternalRow.empty());
                for (int key = 0; options != null && key < options.numElements(); key++) {
                    if (option.equalsIgnoreCase(options.keyArray().getUTF8String(key).toString())) {
                        throw refusal(name + " reads no files: leave out the option " + option + ".");
                    }
                }
            }
        }
    }

    private static void checkDescriptor(String name, Seq<Expression> arguments) {
        if (arguments.length() > 2 && arguments.apply(2).dataType() instanceof StringType) {
            throw refusal(name + " reads no files: pass the descriptor's content as BINARY, not its path.");
        }
    }

    /** The analyser makes a copy of a row's expressions for each of the windows to which it belongs. */
    private static void checkWindow(Supplier<Expression> made) {
        if (made.get() instanceof TimeWindow window
                && window.slideDuration() > 0
                && window.windowDuration() / window.slideDuration() > MAX_WINDOWS) {
            throw refusal("A time belongs to no more than " + MAX_WINDOWS + " windows: let them be shorter, or slide further.");
        }
    }

    static RuntimeException refusal(String message) {
        return sneaky(new AnalysisException("USER_RAISED_EXCEPTION", new Map1<>("errorMessage", message)));
    }

    /** AnalysisException is a checked one in Java alone. */
    @SuppressWarnings("unchecked")
    private static <T extends Throwable> RuntimeException sneaky(Throwable error) throws T {
        throw (T) error;
    }
}
