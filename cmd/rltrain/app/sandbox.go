package app

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/sandbox"
)

// maxProgram is how long a program may be, in bytes.
const maxProgram = 1 << 20

func sandboxCommand() *cli.Command {
	usual := sandbox.Usual()
	return &cli.Command{
		Name:  "sandbox",
		Usage: "run a program that nobody has read, and say how it ended",
		Description: `Reads the program from the standard input, runs it and prints one line of JSON: status (ok, error, signal, timeout,
memory, output, sandbox-error), exit_code, stdout, stderr, cpu_s, peak_mb and tier. It sees no file of the machine
but its language's own, no network, no environment and no other process, and nothing that it starts outlives it.
rltrain doctor shows what this machine offers for it.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "language", Value: sandbox.Python, Usage: "one of " + strings.Join(sandbox.Languages, ", ")},
			&cli.StringFlag{Name: "interpreter", Usage: "the interpreter's program", DefaultText: "found in PATH"},
			&cli.Float64Flag{Name: "timeout", Value: usual.Wall.Seconds(), Usage: "seconds that the program may take"},
			&cli.IntFlag{Name: "memory-mb", Value: int(usual.Memory >> 20), Usage: "MiB of memory that its processes may hold together"},
			&cli.StringFlag{Name: "stdin", Usage: "`FILE` that the program reads as its standard input", DefaultText: "nothing to read"},
			&cli.StringFlag{Name: "tier", Usage: "use this tier, or fail", DefaultText: "the strongest that works"},
			&cli.BoolFlag{Name: "unsafe-exec", Usage: "where no sandbox works, run the program with limits alone: it can read and change all that you can"},
		},
		Action: runSandbox,
	}
}

func runSandbox(c *cli.Context) error {
	limits := sandbox.Usual()
	if s := c.Float64("timeout"); !(s > 0 && s <= 86400) {
		return shared.UsageErrorf("--timeout: %v seconds: choose more than 0 and at most 86400", s)
	}
	limits.Wall = time.Duration(c.Float64("timeout") * float64(time.Second))
	if mb := c.Int("memory-mb"); mb < 16 || mb > 1<<20 {
		return shared.UsageErrorf("--memory-mb: %d: choose from 16 to 1048576", mb)
	}
	limits.Memory = int64(c.Int("memory-mb")) << 20
	limits.AddressSpace = limits.Memory + 512<<20
	var input []byte
	if path := c.String("stdin"); path != "" {
		var err error
		if input, err = os.ReadFile(path); err != nil {
			return fmt.Errorf("--stdin: %w", err)
		}
	}
	s, err := sandbox.Open(c.Bool("unsafe-exec"))
	if tier := c.String("tier"); tier != "" {
		if tier == string(sandbox.Unsafe) && !c.Bool("unsafe-exec") {
			return shared.UsageErrorf("--tier unsafe: keeps nothing in; add --unsafe-exec if that is what you want")
		}
		s, err = sandbox.In(sandbox.Tier(tier))
	}
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	language, err := s.Find(c.Context, c.String("language"), c.String("interpreter"))
	if err != nil {
		return err
	}
	program, err := io.ReadAll(io.LimitReader(c.App.Reader, maxProgram+1))
	if err != nil {
		return fmt.Errorf("reading the program: %w", err)
	}
	if len(program) > maxProgram {
		return fmt.Errorf("the program has more than %d bytes", maxProgram)
	}
	outcome, err := s.RunText(c.Context, limits, language, string(program), input)
	if err != nil {
		return err
	}
	line := json.NewEncoder(c.App.Writer)
	line.SetEscapeHTML(false)
	return line.Encode(outcome)
}
