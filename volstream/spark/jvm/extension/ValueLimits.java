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
import org.apache.spark.sql.catalyst.expressions.FormatNumber;
import org.apache.spark.sql.catalyst.expressions.FormatString;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.Multiply;
import org.apache.spark.sql.catalyst.expressions.OctetLength;
import org.apache.spark.sql.catalyst.expressions.RLike;
import org.apache.spark.sql.catalyst.expressions.RaiseError;
import org.apache.spark.sql.catalyst.expressions.RandStr;
import org.apache.spark.sql.catalyst.expressions.RegExpReplace;
import org.apache.spark.sql.catalyst.expressions.Sequence;
import org.apache.spark.sql.catalyst.expressions.StringLPad;
import org.apache.spark.sql.catalyst.expressions.StringRPad;
import org.apache.spark.sql.catalyst.expressions.StringRepeat;
import org.apache.spark.sql.catalyst.expressions.StringReplace;
import org.apache.spark.sql.catalyst.expressions.StringSpace;
import org.apache.spark.sql.catalyst.expressions.StringSplit;
import org.apache.spark.sql.catalyst.expressions.Subtract;
import org.apache.spark.sql.catalyst.expressions.TimestampAddInterval;
import org.apache.spark.sql.catalyst.expressions.TimestampAddYMInterval;
import org.apache.spark.sql.catalyst.expressions.UnixMicros;
import org.apache.spark.sql.catalyst.expressions.aggregate.CountMinSketchAgg;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType$;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.TimestampType$;
import org.apache.spark.sql.types.YearMonthIntervalType;
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

    private static final Pattern SPECIFIER = Pattern.compile("%[^a-zA-Z%]*[a-zA-Z]");

    /** But not the number of an argument. */
    private static final Pattern WIDTH = Pattern.compile("\\d+(?![\\d$])");

    private static final Option<String> UTC = Option.apply("UTC");

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
            return new Number(replace.replaceExpr(), replaced(replace.srcExpr(), replace.replaceExpr()));
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
        } else if (expression instanceof Sequence sequence && sequence.stepOpt().isDefined()) {
            return new Number(sequence.stop(), times(sequence.start(), sequence.stop(), sequence.stepOpt().get()));
        } else if (expression instanceof FormatString format) {
            Expression pattern = format.children().head();
            return new Number(pattern, pattern.foldable() ? literal(width(pattern)) : widest(pattern));
        } else if (expression instanceof FormatNumber format && format.right().dataType() instanceof IntegralType) {
            return plain(format.right());
        } else if (expression instanceof RegExpReplace replace) {
            return new Number(replace.rep(), replaced(replace.subject(), replace.rep()));
        } else if (expression instanceof StringSplit split) {
            // Each character may become an element, which is many times as large.
            return new Number(split.str(), new Multiply(number(new OctetLength(split.str())), literal(4)));
        } else if (expression instanceof CountMinSketchAgg sketch) {
            return new Number(sketch.epsExpression(), literal(bytes(sketch)));
        }
        return null;
    }

    private static Number plain(Expression argument) {
        return new Number(argument, number(argument));
    }

    /** A quarter of what comes out if the replacement stands in place of each byte, which it rarely does. */
    private static Expression replaced(Expression text, Expression by) {
        return new Divide(product(text, new OctetLength(by)), literal(4));
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
        return steps(distance, number(step.get()));
    }

    /** How many steps there are between two times or dates. */
    private static Expression times(Expression start, Expression stop, Expression step) {
        Expression begin = moment(start);
        Expression next = step.dataType() instanceof YearMonthIntervalType
                ? new TimestampAddYMInterval(begin, step, UTC)
                : new TimestampAddInterval(begin, step, UTC);
        Expression first = micros(begin);
        return steps(new Abs(new Subtract(micros(moment(stop)), first)), new Subtract(micros(next), first));
    }

    private static Expression steps(Expression distance, Expression step) {
        Expression size = new Abs(step);
        return new Divide(distance, new If(new GreaterThan(size, literal(1)), size, literal(1)));
    }

    private static Expression moment(Expression time) {
        return new Cast(time, TimestampType$.MODULE$, UTC);
    }

    private static Expression micros(Expression moment) {
        return number(new UnixMicros(moment));
    }

    /** The sum of the widths and precisions in a format. */
    private static double width(Expression format) {
        Object text = format.eval(InternalRow.empty());
        double sum = 0;
        Matcher specifier = SPECIFIER.matcher(text == null ? "" : text.toString());
        while (specifier.find()) {
            Matcher width = WIDTH.matcher(specifier.group());
            while (width.find()) {
                sum += Double.parseDouble(width.group());
            }
        }
        return sum;
    }

    /** Of a format that is not constant: widths of more than two digits are refused. */
    private static Expression widest(Expression format) {
        Expression wide = new RLike(format, Literal$.MODULE$.apply("%[^a-zA-Z%]*\\d{3}"));
        return new If(wide, literal(Double.MAX_VALUE), new Multiply(number(new OctetLength(format)), literal(50)));
    }

    private static double bytes(CountMinSketchAgg sketch) {
        double relative = constant(sketch.epsExpression());
        double confidence = constant(sketch.confidenceExpression());
        return 8 * Math.ceil(2 / relative) * Math.ceil(-Math.log(1 - confidence) / Math.log(2));
    }

    private static double constant(Expression expression) {
        Object value = number(expression).eval(InternalRow.empty());
        return value == null ? 1 : (Double) value;
    }

    private static Expression literal(double value) {
        return Literal$.MODULE$.apply(value);
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
        Expression checked = new If(new GreaterThan(number.size, literal(MAX)), refused, number.argument);
        return (Expression) expression.mapChildren(
                child -> child == number.argument ? checked : child);
    }
}
