package volstream;

import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Abs;
import org.apache.spark.sql.catalyst.expressions.ArrayInsert;
import org.apache.spark.sql.catalyst.expressions.ArrayRepeat;
import org.apache.spark.sql.catalyst.expressions.BinaryPad;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Divide;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.FormatString;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.Multiply;
import org.apache.spark.sql.catalyst.expressions.OctetLength;
import org.apache.spark.sql.catalyst.expressions.RaiseError;
import org.apache.spark.sql.catalyst.expressions.RandStr;
import org.apache.spark.sql.catalyst.expressions.Sequence;
import org.apache.spark.sql.catalyst.expressions.StringLPad;
import org.apache.spark.sql.catalyst.expressions.StringRPad;
import org.apache.spark.sql.catalyst.expressions.StringRepeat;
import org.apache.spark.sql.catalyst.expressions.StringReplace;
import org.apache.spark.sql.catalyst.expressions.StringSpace;
import org.apache.spark.sql.catalyst.expressions.Subtract;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType$;
import org.apache.spark.sql.types.IntegralType;
import scala.Option;
import scala.runtime.AbstractPartialFunction;

/**
 * Limits the size of values that functions make from a number: one value of gigabytes ends the JVM, and so the statements of all.
 *
 * <p>A constant that is too large is refused; otherwise the number is checked when the function is called.
 */
final class ValueLimits extends Rule<LogicalPlan> {
    /** Bytes of a text, and elements of an array. */
    private static final double MAX = 1 << 26;

    private static final Pattern WIDTH = Pattern.compile("%[^a-zA-Z%]*?(\\d{7,})");

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        return (LogicalPlan) plan.transformAllExpressions(new AbstractPartialFunction<>() {
            @Override
            public boolean isDefinedAt(Expression expression) {
                return expression.resolved() && numberOf(expression) != null;
            }

            @Override
            public <A extends Expression, B> B applyOrElse(A expression, scala.Function1<A, B> otherwise) {
                return isDefinedAt(expression) ? (B) limited(expression, numberOf(expression)) : otherwise.apply(expression);
            }
        });
    }

    /** The argument that decides on the size, and the size as a number. */
    private record Number(Expression argument, Expression size) {}

    private static Number numberOf(Expression expression) {
        if (expression instanceof StringRepeat repeat) {
            return new Number(repeat.times(), product(repeat.str(), repeat.times()));
        } else if (expression instanceof StringReplace replace) {
            return new Number(replace.replaceExpr(), product(replace.srcExpr(), new OctetLength(replace.replaceExpr())));
        } else if (expression instanceof StringSpace space) {
            return plain(space.child());
        } else if (expression instanceof StringLPad pad) {
            return plain(pad.len());
        } else if (expression instanceof StringRPad pad) {
            return plain(pad.len());
        } else if (expression instanceof BinaryPad pad) {
            return plain(pad.len());
        } else if (expression instanceof ArrayRepeat repeat) {
            return plain(repeat.right());
        } else if (expression instanceof RandStr random) {
            return plain(random.length());
        } else if (expression instanceof ArrayInsert insert) {
            return new Number(insert.posExpr(), new Abs(number(insert.posExpr())));
        } else if (expression instanceof Sequence sequence && sequence.stop().dataType() instanceof IntegralType) {
            return new Number(sequence.stop(), length(sequence));
        } else if (expression instanceof FormatString format && format.children().head().foldable()) {
            return new Number(format.children().head(), Literal$.MODULE$.apply(width(format.children().head())));
        }
        return null;
    }

    private static Number plain(Expression argument) {
        return new Number(argument, number(argument));
    }

    private static Expression product(Expression text, Expression times) {
        return new Multiply(number(new OctetLength(text)), number(times));
    }

    /** How many steps there are between the ends; Spark itself refuses a step of 0. */
    private static Expression length(Sequence sequence) {
        Expression distance = new Abs(new Subtract(number(sequence.stop()), number(sequence.start())));
        Option<Expression> step = sequence.stepOpt();
        if (step.isEmpty()) {
            return distance;
        }
        Expression size = new Abs(number(step.get()));
        return new Divide(
                distance, new If(new GreaterThan(size, Literal$.MODULE$.apply(1.0)), size, Literal$.MODULE$.apply(1.0)));
    }

    private static double width(Expression format) {
        Object text = format.eval(InternalRow.empty());
        Matcher width = WIDTH.matcher(text == null ? "" : text.toString());
        return width.find() ? Double.MAX_VALUE : 0;
    }

    private static Expression number(Expression expression) {
        return new Cast(expression, DoubleType$.MODULE$, Option.empty());
    }

    private static Expression limited(Expression expression, Number number) {
        if (number.argument instanceof If done && done.trueValue().find(one -> one instanceof RaiseError).isDefined()) {
            return expression;
        }
        String said = expression.prettyName() + " makes no values of more than " + (int) MAX + " bytes or elements.";
        if (number.size.foldable()) {
            Object size = number.size.eval(InternalRow.empty());
            if (size != null && (Double) size > MAX) {
                throw NoReflection.refusal(said);
            }
            return expression;
        }
        DataType kind = number.argument.dataType();
        Expression refused = new Cast(new RaiseError(Literal$.MODULE$.apply(said)), kind, Option.empty());
        Expression checked = new If(new GreaterThan(number.size, Literal$.MODULE$.apply(MAX)), refused, number.argument);
        return (Expression) expression.mapChildren(
                child -> child == number.argument ? checked : child);
    }
}
