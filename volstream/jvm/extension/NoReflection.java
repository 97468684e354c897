package volstream;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Removes the SQL functions that call any Java method from Spark's built-in functions.
 *
 * <p>Spark applies the classes in spark.sql.extensions before the first session copies the built-in functions.
 * <code>python -m tests.extension</code> compiles this file into the jar beside it.
 */
public final class NoReflection extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    private static final String[] NAMES = {"reflect", "try_reflect", "java_method"};

    @Override
    public BoxedUnit apply(SparkSessionExtensions extensions) {
        for (String name : NAMES) {
            FunctionRegistry.builtin().dropFunction(FunctionRegistry$.MODULE$.builtinFunctionIdentifier(name));
        }
        return BoxedUnit.UNIT;
    }
}
