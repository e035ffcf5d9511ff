// Package app is the program rltrain as a function, for programs of one's own: one that imports its own tasks,
// algorithms and rewards, which register themselves, and calls Main has them beside the built-in ones.
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
	"github.com/rltrain/rltrain/cmd/rltrain/doctor"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/cmd/rltrain/train"
	_ "github.com/rltrain/rltrain/envs/chat"
	_ "github.com/rltrain/rltrain/envs/code"
	_ "github.com/rltrain/rltrain/envs/digits"
	_ "github.com/rltrain/rltrain/envs/intent"
	_ "github.com/rltrain/rltrain/envs/math"
	_ "github.com/rltrain/rltrain/envs/preference"
	_ "github.com/rltrain/rltrain/envs/prompts"
	_ "github.com/rltrain/rltrain/envs/text"
	"github.com/rltrain/rltrain/rl/run"
)

// Exit codes beside shared.ExitUsage. A stop that the user asked for ends with 128 and the signal's number: 129, 130, 138 or 143.
const (
	exitFailure = 1
	exitSignal  = 128
)

// Main runs the program with the arguments of the process, and ends the process.
func Main() {
	os.Exit(Run(interruptible(), os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// Run is the program without its process: it returns the exit code and prints an error as one line. args are those of
// os.Args.
func Run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if values, ok := completeValue(args[1:]); ok {
		for _, value := range values {
			fmt.Fprintln(stdout, value)
		}
		return 0
	}
	app, err := newApp(environ, stdin, stdout, stderr)
	if err == nil {
		args, err = config.Arguments(app, args)
	}
	if err == nil {
		err = app.RunContext(ctx, args)
	}
	code, message := explain(ctx, err)
	if message != "" {
		fmt.Fprintln(stderr, "rltrain: "+shared.OneLine(message))
	}
	if code == exitFailure || code == shared.ExitUsage {
		if err := shared.TellLauncher(environ, message); err != nil {
			fmt.Fprintln(stderr, "rltrain: "+shared.OneLine(err.Error()))
		}
	}
	return code
}

// explain is the exit code of an error, and what to say about it.
func explain(ctx context.Context, err error) (code int, message string) {
	var usage *config.UsageError
	var exit cli.ExitCoder
	var stop interrupted
	switch {
	case err == nil:
		return 0, ""
	case errors.Is(err, run.ErrStopped) && errors.Is(err, syscall.EPIPE):
		return exitSignal + int(syscall.SIGPIPE), "stopped, after saving: nobody reads the output any more; to go on, give the same command with --resume"
	case errors.Is(err, syscall.EPIPE): // whoever read our output has had enough
		return 0, ""
	case errors.As(context.Cause(ctx), &stop) && errors.Is(err, run.ErrStopped):
		return exitSignal + int(stop.signal), err.Error() + "; to go on, give the same command with --resume"
	case errors.As(context.Cause(ctx), &stop) && errors.Is(err, context.Canceled):
		return exitSignal + int(stop.signal), stop.Error()
	case errors.As(err, &usage):
		return shared.ExitUsage, err.Error()
	case errors.As(err, &exit):
		return exit.ExitCode(), err.Error()
	}
	return exitFailure, err.Error()
}

func newApp(environ []string, stdin io.Reader, stdout, stderr io.Writer) (*cli.App, error) {
	app := &cli.App{
		Name:  "rltrain",
		Usage: "train text classifiers and language models, supervised and by reinforcement learning",
		UsageText: `rltrain [train] [--option value ...]   train; rltrain train --help lists the options that matter most, --help-all all
rltrain COMMAND --help                 explain a command`,
		Version: shared.Version,
		Reader:  stdin, Writer: stdout, ErrWriter: stderr,
		EnableBashCompletion: true,
		Commands:             []*cli.Command{config.TrainCommand(environ, train.Run)},
	}
	for _, command := range []func() (*cli.Command, error){evalCommand, compareCommand, predictCommand, generateCommand, chatCommand, scoreCommand, serveCommand} {
		c, err := command()
		if err != nil {
			return nil, err
		}
		app.Commands = append(app.Commands, c)
	}
	app.Commands = append(app.Commands, modelsCommand(), mergeCommand(), doctor.Command(), reportCommand(), replayCommand(), sandboxCommand(), bench.Command(), answerCommand(), completionCommand())
	for _, c := range app.Commands {
		// Otherwise a folder called help could not be an argument.
		c.HideHelpCommand = true
	}
	return app, nil
}
