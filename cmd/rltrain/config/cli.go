package config

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// TrainCommand is the default subcommand: it loads the configuration from its arguments and environ and hands it to run.
// Its arguments are read by Load, not by the cli library, whose messages name neither layers nor nearest names.
func TrainCommand(environ []string, run func(context.Context, *Config) error) *cli.Command {
	return &cli.Command{
		Name:            "train",
		Usage:           "train a model (the default command)",
		Flags:           completionFlags(),
		SkipFlagParsing: true,
		HideHelp:        true,
		Action: func(c *cli.Context) error {
			args := c.Args().Slice()
			if asksForHelp(args) {
				task := taskOf(args)
				text, err := Help(task)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(c.App.Writer, "Usage: %s train [--option value ...]\n\nOptions of task %s; --task NAME --help shows those of another: %s.\n\n%s",
					c.App.Name, task, strings.Join(taskNames, ", "), text)
				return err
			}
			loaded, err := Load(args, environ)
			if err != nil {
				return err
			}
			return run(c.Context, loaded)
		},
	}
}

func asksForHelp(args []string) bool {
	return slices.Contains(args, "--help") || slices.Contains(args, "-h")
}

// taskOf is the task that --help is about.
func taskOf(args []string) string {
	for i, arg := range args {
		name, value, assigned := strings.Cut(arg, "=")
		if !assigned && i+1 < len(args) {
			value = args[i+1]
		}
		if name == "--task" && slices.Contains(taskNames, value) {
			return value
		}
	}
	return Intent
}

// completionFlags are the training options as shell completion wants them.
func completionFlags() []cli.Flag {
	flags := make([]cli.Flag, len(keys))
	for i := range keys {
		name := strings.ReplaceAll(keys[i].name, "_", "-")
		if keys[i].kind == reflect.Bool {
			flags[i] = &cli.BoolFlag{Name: name, Usage: keys[i].help}
		} else {
			flags[i] = &cli.StringFlag{Name: name, Usage: keys[i].help}
		}
	}
	return flags
}

// Flags makes cli flags of the named keys, with their help and the recipe's defaults, for other subcommands.
func Flags(keys ...string) ([]cli.Flag, error) {
	defaults, err := Defaults(Intent)
	if err != nil {
		return nil, err
	}
	flags := make([]cli.Flag, len(keys))
	for i, name := range keys {
		k := find(name)
		if k == nil {
			return nil, fmt.Errorf("no setting is called %s%s", name, didYouMean(name, names(), plain))
		}
		flag := strings.ReplaceAll(name, "_", "-")
		switch v := defaults.field(k).Interface().(type) {
		case bool:
			flags[i] = &cli.BoolFlag{Name: flag, Usage: k.help, Value: v}
		case int:
			flags[i] = &cli.IntFlag{Name: flag, Usage: k.help, Value: v, Action: checked[int](k)}
		case uint64:
			flags[i] = &cli.Uint64Flag{Name: flag, Usage: k.help, Value: v, Action: checked[uint64](k)}
		case float64:
			flags[i] = &cli.Float64Flag{Name: flag, Usage: k.help, Value: v, Action: checked[float64](k)}
		case string:
			flags[i] = &cli.StringFlag{Name: flag, Usage: k.help, Value: v, Action: checked[string](k)}
		default:
			return nil, fmt.Errorf("%s has no plain flag", name)
		}
	}
	return flags, nil
}

// checked holds a flag of another subcommand to the limits of its key.
func checked[T any](k *key) func(*cli.Context, T) error {
	return func(_ *cli.Context, value T) error {
		if _, err := k.parse(rawValue{text: fmt.Sprint(value)}); err != nil {
			return usagef("%s: %v", flagName(k.name), err)
		}
		return nil
	}
}

// Arguments prepares argv (os.Args) for app.Run, and app for strictness. The command train is put in where none is named.
// For the other commands underscores in options become dashes, options may follow arguments, and unknown options, missing
// values and a wrong number of arguments are errors; a command takes as many as its ArgsUsage has words.
func Arguments(app *cli.App, argv []string) ([]string, error) {
	app.DisableSliceFlagSeparator = true
	app.ExitErrHandler = func(*cli.Context, error) {} // errors go back to main, which prints them once
	app.OnUsageError = usageError
	for _, c := range app.Commands {
		c.OnUsageError = usageError
	}
	args := argv[1:]
	switch {
	case len(args) == 0:
		return append(slices.Clone(argv), "train"), nil
	case args[len(args)-1] == "--generate-bash-completion" && (len(args) == 1 || !strings.HasPrefix(args[0], "-")):
		return argv, nil
	case slices.Contains([]string{"help", "h", "--help", "-h", "--version", "-v"}, args[0]):
		if len(args) == 2 && app.Command(args[1]) != nil {
			return []string{argv[0], args[1], "--help"}, nil
		}
		return argv[:2], nil
	case strings.HasPrefix(args[0], "-"):
		return append([]string{argv[0], "train"}, args...), nil
	}
	command := app.Command(args[0])
	if command == nil {
		return nil, usagef("unknown command %s%s", args[0], didYouMean(args[0], commandNames(app.Commands), plain))
	}
	if command.SkipFlagParsing {
		return argv, nil
	}
	words, args := []string{argv[0], command.Name}, args[1:]
	if len(command.Subcommands) > 0 {
		if len(args) == 0 || strings.HasPrefix(args[0], "-") && !asksForHelp(args) {
			return nil, usagef("%s needs a command: %s", command.Name, strings.Join(commandNames(command.Subcommands), ", "))
		}
		if !strings.HasPrefix(args[0], "-") {
			i := slices.IndexFunc(command.Subcommands, func(c *cli.Command) bool { return c.HasName(args[0]) })
			if i < 0 {
				names := commandNames(command.Subcommands)
				return nil, usagef("unknown command %s of %s%s", args[0], command.Name, didYouMean(args[0], names, plain))
			}
			command = command.Subcommands[i]
			command.OnUsageError = usageError
			words, args = append(words, command.Name), args[1:]
		}
	}
	if asksForHelp(args) {
		return append(words, "--help"), nil
	}
	parsed, err := commandArguments(command, args)
	return append(words, parsed...), err
}

// commandArguments puts a subcommand's arguments into the form the cli library reads without surprises.
func commandArguments(command *cli.Command, args []string) ([]string, error) {
	boolean := map[string]bool{} // by canonical name
	var all []string
	for _, f := range command.Flags {
		for _, name := range f.Names() {
			documented, ok := f.(cli.DocGenerationFlag)
			boolean[canonical(name)] = ok && !documented.TakesValue()
			all = append(all, name)
		}
	}
	options, positional, err := scan(args, func(name string) (bool, bool) {
		isBool, known := boolean[name]
		return known, isBool
	}, func(typed string) error {
		return usagef("unknown option %s of %s%s", typed, command.Name, didYouMean(strings.TrimLeft(typed, "-"), all, flagName))
	})
	if err != nil {
		return nil, err
	}
	wanted := strings.Fields(command.ArgsUsage)
	switch {
	case len(positional) > 0 && len(wanted) == 0:
		return nil, usagef("stray argument %q: %s takes only options, written --name=value", positional[0], command.Name)
	case len(positional) != len(wanted):
		return nil, usagef("%s takes %d arguments, %s, not %d", command.Name, len(wanted), command.ArgsUsage, len(positional))
	}
	var parsed []string
	for _, o := range options {
		parsed = append(parsed, flagName(o.name)+"="+o.value)
	}
	return append(append(parsed, "--"), positional...), nil
}

func commandNames(commands []*cli.Command) []string {
	var list []string
	for _, c := range commands {
		list = append(list, c.Names()...)
	}
	return list
}

// goFlagError is how package flag writes an option: one dash, after "for flag".
var goFlagError = regexp.MustCompile(`^invalid (?:boolean )?value (.*) for (?:flag )?-([A-Za-z0-9-]+): (.*)$`)

// usageError turns the cli library's complaint about an option into a *UsageError.
func usageError(_ *cli.Context, err error, _ bool) error {
	if m := goFlagError.FindStringSubmatch(err.Error()); m != nil {
		return usagef("--%s: %s is not a valid value", m[2], m[1])
	}
	return usagef("%v", err)
}
