// Package app runs the command line of rltrain. A program that imports its own tasks, algorithms or rewards, which register
// themselves, and calls [Main] has them next to the built-in ones.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/bench"
	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/setup"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/cmd/rltrain/train"
	_ "github.com/rltrain/rltrain/envs/agent"
	_ "github.com/rltrain/rltrain/envs/chat"
	_ "github.com/rltrain/rltrain/envs/code"
	_ "github.com/rltrain/rltrain/envs/decisions"
	_ "github.com/rltrain/rltrain/envs/digits"
	_ "github.com/rltrain/rltrain/envs/intent"
	_ "github.com/rltrain/rltrain/envs/math"
	_ "github.com/rltrain/rltrain/envs/play"
	_ "github.com/rltrain/rltrain/envs/preference"
	_ "github.com/rltrain/rltrain/envs/prompts"
	_ "github.com/rltrain/rltrain/envs/text"
	"github.com/rltrain/rltrain/rl/run"
)

// Exit codes, besides shared.ExitUsage. A signal exits with 128 plus its number: 129, 130, 138 or 143.
const (
	exitFailure = 1
	exitSignal  = 128
	exitTimeUp  = 124 // as of timeout(1)
)

// Main runs rltrain with the arguments of the process and exits.
func Main() {
	os.Exit(Run(interruptible(), os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// Run runs rltrain and returns its exit code. It prints an error as one line. args starts with the name of the program, as
// os.Args does.
func Run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if values, ok := completeValue(args[1:]); ok {
		for _, value := range values {
			fmt.Fprintln(stdout, value)
		}
		return 0
	}
	app := newApp(environ, stdin, stdout, stderr)
	args, yes := withoutYes(args)
	ctx = shared.WithConsent(ctx, shared.Consent{Yes: yes, Stdin: stdin, Stderr: stderr})
	args, err := config.Arguments(app, args)
	if err == nil {
		err = app.RunContext(ctx, args)
	}
	code, message := explain(ctx, err)
	if message != "" {
		fmt.Fprintln(stderr, "rltrain: "+shared.OneLine(message))
	}
	if load := (*config.LoadError)(nil); errors.As(err, &load) {
		train.Refuse(ctx, environ, shared.OneLine(message))
	}
	if code == exitFailure || code == shared.ExitUsage {
		if err := shared.TellLauncher(environ, message); err != nil {
			fmt.Fprintln(stderr, "rltrain: "+shared.OneLine(err.Error()))
		}
	}
	return code
}

// yesFlag, anywhere before "--", agrees to the download of libtorch. Every command has it.
const yesFlag = "--yes"

func withoutYes(args []string) (rest []string, yes bool) {
	for i, arg := range args {
		switch arg {
		case "--":
			return append(rest, args[i:]...), yes
		case yesFlag:
			yes = true
		default:
			rest = append(rest, arg)
		}
	}
	return rest, yes
}

// explain returns the exit code and the message of an error.
func explain(ctx context.Context, err error) (code int, message string) {
	var usage *config.UsageError
	var exit cli.ExitCoder
	var stop interrupted
	resume := "; run the same command with --resume auto to continue" // auto: the run may not have begun
	if part := (partlyGenerated{}); errors.As(err, &part) {
		resume = "; run the same command with --resume to continue"
	}
	switch {
	case err == nil:
		return 0, ""
	case errors.Is(err, run.ErrTimeUp):
		return exitTimeUp, err.Error() + resume
	case errors.Is(err, run.ErrStopped) && errors.Is(err, syscall.EPIPE):
		return exitSignal + int(syscall.SIGPIPE), "stopped and saved: the output was closed" + resume
	case errors.Is(err, syscall.EPIPE): // the reader of the output has closed it
		return 0, ""
	case errors.As(context.Cause(ctx), &stop) && errors.Is(err, run.ErrStopped):
		return exitSignal + int(stop.signal), err.Error() + resume
	case errors.As(context.Cause(ctx), &stop) && errors.Is(err, context.Canceled):
		return exitSignal + int(stop.signal), stop.Error()
	case errors.As(err, &usage):
		return shared.ExitUsage, err.Error()
	case errors.As(err, &exit):
		return exit.ExitCode(), err.Error()
	}
	return exitFailure, err.Error()
}

func newApp(environ []string, stdin io.Reader, stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:  "rltrain",
		Usage: "fine-tune language models and text classifiers with supervised and reinforcement learning",
		UsageText: `rltrain [train] [--option value ...]   train a model; rltrain train --help shows common options, --help-all shows all
rltrain COMMAND --help                 show help for a command
rltrain --yes COMMAND ...              download libtorch without asking if it is missing`,
		Version: shared.Version,
		Reader:  stdin, Writer: stdout, ErrWriter: stderr,
		EnableBashCompletion: true,
		Commands: []*cli.Command{
			config.TrainCommand(environ, train.Run), evalCommand(), compareCommand(), predictCommand(), generateCommand(), chatCommand(), scoreCommand(),
			serveCommand(), exportCommand(), modelsCommand(), mergeCommand(), doctorCommand(), reportCommand(), rescoreCommand(), sandboxCommand(),
			bench.Command(), answerCommand(), completionCommand(), manCommand(), setup.Command(), versionCommand(),
		},
	}
	for _, c := range app.Commands {
		// Allows a folder called help as an argument.
		c.HideHelpCommand = true
		if c.Before == nil {
			c.Before = chooseGGUF
		}
	}
	return app
}
