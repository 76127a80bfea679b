package flambeau

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}

import scala.collection.JavaConverters._
import scala.io.Source

import com.fasterxml.jackson.databind.JsonNode
import flambeau.internal.util.Json
import org.apache.spark.ml.param.{
  BooleanParam, DoubleArrayParam, DoubleParam, IntParam, LongParam, Param, ParamMap, StringArrayParam
}
import org.apache.spark.ml.param.shared._
import org.scalatest.funsuite.AnyFunSuite

/** Holds the params against the schema of the training job. */
class ParamsSuite extends AnyFunSuite {
  import ParamsSuite.Everything

  private val schema: Map[String, JsonNode] = {
    val text = new String(Files.readAllBytes(Paths.get("docs/training-job.schema.json")), UTF_8)
    Json.fields(Json.parse(text).at("/$defs/TrainingParams/properties")).toMap
  }

  private def fresh() = new Everything("everything")

  /** The setter of a param that takes what it stores. */
  private def set(params: Everything, name: String, value: Any): Unit = {
    val setter = s"set${name.head.toUpper}${name.tail}"
    val kind = boxed(value)
    val method = params.getClass.getMethods.find(m => m.getName == setter && kind(m.getParameterTypes.head))
    try method.getOrElse(fail(s"no $setter for ${value.getClass}")).invoke(params, value.asInstanceOf[AnyRef])
    catch { case error: java.lang.reflect.InvocationTargetException => throw error.getCause }
  }

  private def boxed(value: Any): Class[_] => Boolean = value match {
    case _: Int     => _ == classOf[Int]
    case _: Long    => _ == classOf[Long]
    case _: Double  => _ == classOf[Double]
    case _: Boolean => _ == classOf[Boolean]
    case other      => _.isInstance(other)
  }

  test("the params are those of the schema, and the objects") {
    assert(fresh().params.map(_.name).toSet == schema.keySet ++ HasObjects.names)
    for (estimator <- Seq(new TorchEstimator(), new TorchRegressor(), new TorchClassifier()))
      assert(estimator.params.map(_.name).toSet == fresh().params.map(_.name).toSet)
  }

  for ((name, property) <- schema.toSeq.sortBy(_._1)) {
    val types =
      if (property.get("type").isArray) Json.texts(property.get("type")) else Seq(property.get("type").asText)

    test(s"$name: doc, default and type") {
      val params = fresh()
      val param = params.getParam(name)
      assert(params.explainParam(param).startsWith(s"$name: ${property.get("description").asText} ("))
      val default =
        params.getDefault(param).map(value => Json.parse(param.asInstanceOf[Param[Any]].jsonEncode(value)))
      val expected = Option(property.get("default")).filterNot(_.isNull)
      assert(default.map(_.asText) == expected.map(_.asText))
      val fits = types.head match {
        case "integer" => param.isInstanceOf[IntParam] || param.isInstanceOf[LongParam]
        case "number"  => param.isInstanceOf[DoubleParam]
        case "boolean" => param.isInstanceOf[BooleanParam]
        case "array" =>
          param.isInstanceOf[StringArrayParam] || param.isInstanceOf[ShapesParam] ||
          param.isInstanceOf[GroupsParam] || param.isInstanceOf[DoubleArrayParam]
        case "string" => param.getClass == classOf[Param[_]]
      }
      assert(fits, s"$param is a ${param.getClass} where the schema has $types")
    }

    if (types.head == "integer" || types.head == "number")
      test(s"$name: bounds") {
        val bounds = Seq("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
          .flatMap(key => Option(property.get(key)).map(key -> _.asDouble))
        for ((key, bound) <- bounds) {
          val outwards = if (key.toLowerCase.contains("min")) -1 else 1
          val beyond =
            if (key.startsWith("exclusive")) bound else Math.nextAfter(bound, outwards * Double.MaxValue)
          val within =
            if (key.startsWith("exclusive")) Math.nextAfter(bound, -outwards * Double.MaxValue) else bound
          def value(number: Double, whole: Double): Any = (fresh().getParam(name): Any) match {
            case _: IntParam  => whole.toInt
            case _: LongParam => whole.toLong
            case _            => number
          }
          set(fresh(), name, value(within, bound))
          val wrong = value(beyond, bound + outwards)
          val error = intercept[ParamException](set(fresh(), name, wrong))
          assert(error.getMessage.startsWith(s"$name must be a "), wrong)
          assert(error.getMessage.endsWith(s", got ${Check.show(wrong)}"), wrong)
        }
      }

    if (property.has("enum"))
      test(s"$name: one of the words") {
        val words = Json.texts(property.get("enum"))
        for (word <- words) set(fresh(), name, word)
        val error = intercept[ParamException](set(fresh(), name, "half"))
        assert(error.getMessage == s"$name must be ${words.map(Check.show).mkString(" or ")}, got 'half'")
      }

    if (types.head == "string" && property.path("minLength").asInt == 1)
      test(s"$name: no empty text") {
        val error = intercept[ParamException](set(fresh(), name, ""))
        assert(error.getMessage == s"$name must be a string that is not empty, got ''")
      }

    if (types.head == "array")
      test(s"$name: no empty list") {
        val empty: Any = (fresh().getParam(name): Any) match {
          case _: ShapesParam      => Array.empty[Array[Int]]
          case _: GroupsParam      => Array.empty[Array[String]]
          case _: DoubleArrayParam => Array.empty[Double]
          case _                   => Array.empty[String]
        }
        assert(intercept[ParamException](set(fresh(), name, empty)).getMessage.startsWith(s"$name must be "))
      }
  }

  test("of words that are allowed, the one that Python's difflib finds close to a wrong one is hinted at") {
    val wrong = for {
      (name, property) <- schema.toSeq.sortBy(_._1) if property.has("enum")
      words = Json.texts(property.get("enum"))
      word <- words
      other <-
        Seq(word.drop(1), word.dropRight(1), word.take(1) + word.drop(2), word.toUpperCase, word.reverse)
      if !words.contains(other)
    } yield (name, other, words)
    val python = Seq(
      "import difflib, json, sys",
      "[print(*difflib.get_close_matches(word, words, n=1)) for word, words in json.loads(sys.argv[1])]"
    ).mkString("\n")
    val cases = Json.text(Json.of(wrong.map { case (_, other, words) => Seq(other, words) }, "cases"))
    val process = new ProcessBuilder(s"${sys.env("VIRTUAL_ENV")}/bin/python", "-c", python, cases).start()
    val close = Source.fromInputStream(process.getInputStream, "UTF-8").getLines().toList
    assert(process.waitFor() == 0 && close.length == wrong.length)
    assert(close.exists(_.isEmpty) && close.distinct.length > 10)
    for (((name, other, _), word) <- wrong.zip(close)) {
      val message = intercept[ParamException](set(fresh(), name, other)).getMessage
      assert(message.endsWith(s", got '$other'${if (word.isEmpty) "" else s"; did you mean '$word'?"}"))
    }
  }

  test("whole values that are not numbers of the range are refused: checkpointInterval 0, NaN, infinity") {
    assert(intercept[ParamException](fresh().setCheckpointInterval(0)).getMessage ==
      "checkpointInterval must be a whole number of at least -1 and at most 1000000, but not 0, got 0")
    intercept[ParamException](fresh().setLearningRate(Double.NaN))
    intercept[ParamException](fresh().setGradientClipNorm(Double.PositiveInfinity))
  }

  test(
    "a value that a ParamMap brings is refused, where Spark's own param lets it in, when the params are used"
  ) {
    val params = fresh()
    intercept[ParamException](params.set(params.batchSize, 0))
    val copy = params.copy(new ParamMap().put(params.labelCol, "").put(params.epochs, 3))
    assert(copy.getEpochs == 3)
    assert(intercept[ParamException](
      copy.checkParams()
    ).getMessage == "labelCol must be a string that is not empty, got ''")
  }

  test("input types and shapes") {
    assert(
      intercept[ParamException](fresh().setInputTypes(Array("float16"))).getMessage ==
        "inputTypes must be a list with one of auto, float32, float64, int64, bool, uint8 for each input, got ['float16']"
    )
    intercept[ParamException](fresh().setInputShapes(Array(Array(3, 0))))
    intercept[ParamException](fresh().setInputCols(Array("a", "a")))
    assert(fresh().setInputShapes(Array(Array(3, 32, 32), Array())).getInputShapes.map(_.toSeq).toSeq == Seq(
      Seq(3, 32, 32),
      Nil
    ))
  }

  test("groups of gradients: each name once, in no empty group") {
    val groups = Array(Array("head.weight"), Array("encoder.weight", "encoder.bias"))
    val params = fresh().setGradientGroups(groups)
    assert(Json.text(params.jobParams.get("gradientGroups")) ==
      """[["head.weight"],["encoder.weight","encoder.bias"]]""")
    assert(params.gradientGroups.jsonDecode(params.gradientGroups.jsonEncode(groups)).map(_.toSeq).toSeq ==
      groups.map(_.toSeq).toSeq)
    for (
      wrong <-
        Seq(Array(Array("a"), Array.empty[String]), Array(Array("a", "b"), Array("a")), Array(Array("")))
    )
      assert(intercept[ParamException](fresh().setGradientGroups(wrong)).getMessage.startsWith(
        "gradientGroups must be a list of groups, each a list of names of parameters, such as "
      ))
  }

  test("Spark ML's own traits are there, with our docs") {
    val params = fresh()
    assert(params.isInstanceOf[HasFeaturesCol])
    assert(params.isInstanceOf[HasInputCols] && params.isInstanceOf[HasLabelCol] && params.isInstanceOf[
      HasWeightCol
    ])
    assert(params.isInstanceOf[HasSeed] && params.isInstanceOf[HasCheckpointInterval])
    assert(params.isInstanceOf[HasPredictionCol] && params.isInstanceOf[HasValidationIndicatorCol])
    assert(params.setSeed(7).explainParam(params.seed).endsWith("of the workers. (default: 0, current: 7)"))
  }

  test("what is refused is an IllegalArgumentException, as Spark ML's is, and a FlambeauException") {
    val error = intercept[IllegalArgumentException](fresh().setEpochs(0))
    assert(error.isInstanceOf[FlambeauException] && error.isInstanceOf[ParamException])
    assert(!classOf[IllegalArgumentException].isAssignableFrom(classOf[DataException]))
  }

  test("stepSize is learningRate by Spark ML's name") {
    val params = fresh().setStepSize(0.5)
    assert(params.getLearningRate == 0.5 && params.setLearningRate(0.25).getStepSize == 0.25)
    assert(!params.hasParam("stepSize"))
  }

  test("what a training job holds: every value and default, under the schema's names") {
    val params = fresh()
      .setFeaturesCol(Array("a", "b"))
      .setInputShapes(Array(Array(2, 1)))
      .setLearningRate(0.25)
      .setLoss("mse")
      .setModel("/program.pt")
    val json = params.jobParams
    assert(Json.text(json.get("featuresCols")) == """["a","b"]""")
    assert(Json.text(json.get("inputShapes")) == "[[2,1]]")
    assert(json.get("learningRate").asDouble == 0.25)
    assert(json.fieldNames().asScala.toSet == schema.filterNot(_._2.path("default").isNull).keySet ++ Seq(
      "featuresCols",
      "inputShapes",
      "learningRate"
    ))
  }

  test("loss, optimizer and metrics: names with options, scripts, and what is no option") {
    val params = fresh()
      .setLoss("huber", Map("delta" -> 1.5))
      .setOptimizer("sgd", Map("momentum" -> 0.9, "nesterov" -> true, "betas" -> Array(0.9, 0.99)))
      .setMetrics(Array("rmse"))
    assert(Json.text(params.getLoss.json) == """{"name":"huber","options":{"delta":1.5}}""")
    val optimizer = params.getOptimizer.json.get("options")
    assert(optimizer.get("momentum").asDouble == 0.9 && optimizer.get("nesterov").asBoolean)
    assert(Json.text(optimizer.get("betas")) == "[0.9,0.99]")
    assert(fresh().getOptimizer == Optimizer("adam"))
    assert(Json.text(fresh().setLossScript("/loss.pt").getLoss.json) == """{"script":"/loss.pt"}""")
    assert(params.loss.jsonDecode(params.loss.jsonEncode(params.getLoss)) == params.getLoss)
    assert(params.optimizer.jsonDecode("\"adam\"") == Optimizer("adam"))
    assert(
      params.optimizer.jsonDecode(params.optimizer.jsonEncode(params.getOptimizer)) == params.getOptimizer
    )
    val java = fresh().setLoss("huber", Map[String, Any]("delta" -> 1.5).asJava)
    assert(java.getLoss == params.getLoss)
    assert(intercept[ParamException](fresh().setLoss("huber", Map("delta" -> new Object))).getMessage
      .startsWith("loss: option 'delta' holds a java.lang.Object; give a number"))
    intercept[ParamException](fresh().setLoss(""))
  }

  test("params come back from their JSON") {
    val params = fresh().setFeaturesCol("x").setInputShapes(Array(Array(2), Array())).setSeed(
      Long.MaxValue
    ).setCollectiveTimeout(0.5)
    val json = params.jsonOf(params.params.toSeq.filter(params.isSet).map(param =>
      param -> params.getOrDefault(param)
    ))
    val other = fresh()
    other.setFromJson(json, asDefault = false)
    assert(other.getFeaturesCol == "x" && other.getSeed == Long.MaxValue)
    assert(other.getCollectiveTimeout == 0.5)
    assert(other.getInputShapes.map(_.toSeq).toSeq == Seq(Seq(2), Nil))
    // As an estimator of an earlier version has it.
    val former = """{"timeout": 7.5, "stepSize": 0.5, "monitorMinDelta": 0.25, "featuresCol": ["a", "b"]}"""
    other.setFromJson(Json.parse(former), asDefault = false)
    assert(other.getCollectiveTimeout == 7.5)
    assert(other.getFeaturesCols.toSeq == Seq("a", "b"))
    assert(other.getLearningRate == 0.5 && other.getMinDelta == 0.25)
    assert(intercept[ParamException](
      other.setFromJson(Json.parse("""{"bogus": 1}"""), asDefault = false)
    ).getMessage ==
      "Everything has no param 'bogus'")
  }
}

object ParamsSuite {

  /** Every param that there is. */
  class Everything(override val uid: String) extends HasTrainingParams with HasObjects {
    override def copy(extra: ParamMap): Everything = defaultCopy(extra)
  }
}
