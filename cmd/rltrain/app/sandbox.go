package app

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/sandbox"
	"github.com/rltrain/rltrain/internal/options"
)

// maxProgram is the maximum length of a program in bytes.
const maxProgram = 1 << 20

// sandboxOptions are the limits of sandbox, by default those of [sandbox.Usual].
type sandboxOptions struct {
	Timeout float64 `option:"timeout" default:"10" range:"(0,86400]" help:"time limit in seconds"`
	Memory  int     `option:"memory_mb" default:"1024" range:"[16,1048576]" help:"memory limit of all its processes, in MiB"`
}

func sandboxCommand() *cli.Command {
	var o sandboxOptions
	return &cli.Command{
		Name:  "sandbox",
		Usage: "run an untrusted program in the sandbox",
		Description: `Reads a program from standard input, runs it, and prints one line of JSON: status (ok, error, signal, timeout, memory,
output, sandbox-error), exit_code, stdout, stderr, cpu_s, peak_mb and tier.

The program sees only the files of its language: no network, no environment, no other processes. Its child processes
end with it. rltrain doctor shows which sandbox this machine supports.`,
		Flags: append(config.OptionFlags(options.MustRead(&o)),
			&cli.StringFlag{Name: "language", Value: sandbox.Python, Usage: "programming language: " + strings.Join(sandbox.Languages, ", ")},
			&cli.StringFlag{Name: "interpreter", Usage: "path of the interpreter", DefaultText: "found in PATH"},
			&cli.StringFlag{Name: "stdin", Usage: "`FILE` for the program's standard input", DefaultText: "empty"},
			&cli.StringFlag{Name: "tier", Usage: "require this tier of isolation", DefaultText: "the strongest available"},
			&cli.BoolFlag{Name: "unsafe-exec", Usage: "if no sandbox works, run the program with limits only: it can read and change everything you can"},
		),
		Action: func(c *cli.Context) error { return runSandbox(c, o) },
	}
}

func runSandbox(c *cli.Context, o sandboxOptions) error {
	limits := sandbox.Usual()
	limits.Wall = time.Duration(o.Timeout * float64(time.Second))
	limits.Memory = int64(o.Memory) << 20
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
			return shared.UsageErrorf("--tier unsafe: does not isolate the program; pass --unsafe-exec to allow it")
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
		return fmt.Errorf("program is longer than %d bytes", maxProgram)
	}
	outcome, err := s.RunText(c.Context, limits, language, string(program), input)
	if err != nil {
		return err
	}
	line := json.NewEncoder(c.App.Writer)
	line.SetEscapeHTML(false)
	return line.Encode(outcome)
}
