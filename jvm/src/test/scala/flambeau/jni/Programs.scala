package flambeau.jni

import java.nio.charset.StandardCharsets
import java.nio.file.{Files, Path, Paths}

/** TorchScript programs for the tests, made by torch of the environment. */
object Programs {

  /** `forward(x)` of one float32 input of 3: 2·(x0 + x1 + x2) + 1, one number a row. */
  lazy val doubledSum: Path = scripted("""
class DoubledSum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        with torch.no_grad():
            self.linear.weight.fill_(2.0)
            self.linear.bias.fill_(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).squeeze(1)
program = DoubledSum()
""")

  /** `forward(x, n, flag, byte)` gives each kind of array: x·2 [2], n + 1, the flag negated [1], the byte as a number. */
  lazy val everyType: Path = scripted("""
class EveryType(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor, flag: torch.Tensor, byte: torch.Tensor):
        return x * 2, n + 1, torch.logical_not(flag), byte.to(torch.int64), x.to(torch.float64)
program = EveryType()
""")

  /** Fails on rows whose first number is negative. */
  lazy val picky: Path = scripted("""
class Picky(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x < 0).any()):
            raise ValueError("a negative number")
        return x
program = Picky()
""")

  /** Twice its rows. Asks for more memory than there are addresses for, where it gets more than five at once. */
  lazy val hungry: Path = scripted("""
class Hungry(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = torch.empty([(1 << 48) if x.size(0) > 5 else 1], dtype=torch.uint8)
        return x * factor[0].fill_(2)
program = Hungry()
""")

  private def scripted(source: String): Path = {
    val folder = Files.createTempDirectory("flambeau-programs-")
    val file = folder.resolve("program.pt")
    val script = folder.resolve("make.py")
    val end = s"torch.jit.save(torch.jit.script(program), '$file')\n"
    Files.write(script, s"import torch\n$source$end".getBytes(StandardCharsets.UTF_8))
    val python = Paths.get(sys.env("VIRTUAL_ENV"), "bin", "python").toString
    val process = new ProcessBuilder(python, script.toString).inheritIO().start()
    assert(process.waitFor() == 0, s"$script failed")
    file.toFile.deleteOnExit()
    script.toFile.deleteOnExit()
    folder.toFile.deleteOnExit()
    file
  }
}
