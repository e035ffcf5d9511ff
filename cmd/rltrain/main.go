// Command rltrain trains text classifiers and language models, supervised and by reinforcement learning, and
// measures, compares, uses, merges and describes what it trained.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/urfave/cli/v2"

	"rltrain/cmd/rltrain/config"
	"rltrain/envs"
	"rltrain/rl/algo"
)

// Exit codes. A stop that the user asked for ends with 128 and the signal's number: 130 or 143.
const (
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 128
)

func main() {
	os.Exit(run(interruptible(), os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// interrupted is why the program's context ended.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string {
	if i.signal == syscall.SIGTERM {
		return "stopped by SIGTERM"
	}
	return "stopped by SIGINT"
}

// interruptible ends its context at the first SIGINT or SIGTERM; the second ends the process at once.
func interruptible() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		first := <-signals
		signal.Reset(syscall.SIGINT, syscall.SIGTERM)
		cancel(interrupted{first.(syscall.Signal)})
	}()
	return ctx
}

// run is the program without its process: it returns the exit code and prints an error as one line.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	setNames()
	app, err := newApp(environ, stdin, stdout, stderr)
	if err == nil {
		args, err = config.Arguments(app, args)
	}
	if err == nil {
		err = app.RunContext(ctx, args)
	}
	code, message := explain(ctx, err)
	if message != "" {
		fmt.Fprintln(stderr, "rltrain: "+oneLine(message))
	}
	return code
}

// setNames tells the options of the algorithms and tasks that this program was built with.
func setNames() {
	var known []config.Algorithm
	for _, a := range algo.Algorithms() {
		known = append(known, config.Algorithm{
			Name: a.Name, Baseline: a.Baseline, Scale: a.Scale, Reduction: a.Reduction, Ratio: a.Ratio != algo.NoRatio, Values: a.ValueLoss != nil,
		})
	}
	config.SetAlgorithms(known)
	config.SetTasks(envs.Names())
}

// explain is the exit code of an error, and what to say about it.
func explain(ctx context.Context, err error) (code int, message string) {
	var usage *config.UsageError
	var exit cli.ExitCoder
	var stop interrupted
	switch {
	case err == nil, errors.Is(err, syscall.EPIPE): // whoever read our output has had enough
		return 0, ""
	case errors.As(context.Cause(ctx), &stop) && errors.Is(err, algo.ErrStopped):
		return exitSignal + int(stop.signal), err.Error() + "; to go on, give the same command with --resume"
	case errors.As(context.Cause(ctx), &stop) && errors.Is(err, context.Canceled):
		return exitSignal + int(stop.signal), stop.Error()
	case errors.As(err, &usage):
		return exitUsage, err.Error()
	case errors.As(err, &exit):
		return exit.ExitCode(), err.Error()
	}
	return exitFailure, err.Error()
}

// usageErrorf is a mistake in what the user typed, found by a command.
func usageErrorf(format string, args ...any) error {
	return cli.Exit(fmt.Sprintf(format, args...), exitUsage)
}

// oneLine keeps a message on one line and free of control characters, whatever names it quotes.
func oneLine(message string) string {
	var b strings.Builder
	for _, r := range strings.ReplaceAll(message, "\n", "; ") {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// version is the program's own; run.json and the model card record it.
const version = "0.1.0"

func newApp(environ []string, stdin io.Reader, stdout, stderr io.Writer) (*cli.App, error) {
	app := &cli.App{
		Name:  "rltrain",
		Usage: "train text classifiers and language models, supervised and by reinforcement learning",
		UsageText: `rltrain [train] [--option value ...]   train; rltrain train --help lists the options
rltrain COMMAND --help                 explain a command`,
		Version: version,
		Reader:  stdin, Writer: stdout, ErrWriter: stderr,
		EnableBashCompletion: true,
		Commands:             []*cli.Command{config.TrainCommand(environ, train)},
	}
	for _, command := range []func() (*cli.Command, error){evalCommand, compareCommand, predictCommand, generateCommand, scoreCommand} {
		c, err := command()
		if err != nil {
			return nil, err
		}
		app.Commands = append(app.Commands, c)
	}
	app.Commands = append(app.Commands, mergeCommand(), doctorCommand(), reportCommand(), benchCommand(), answerCommand(), completionCommand())
	for _, c := range app.Commands {
		// Otherwise a folder called help could not be an argument.
		c.HideHelpCommand = true
	}
	return app, nil
}
