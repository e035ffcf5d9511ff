package config

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/internal/options"
)

// TrainCommand is the default subcommand: it loads the configuration from its arguments and environ and hands it to run.
// Its arguments are read by Load, not by the cli library, whose messages name neither layers nor nearest names.
func TrainCommand(environ []string, run func(context.Context, *Config) error) *cli.Command {
	return &cli.Command{
		Name:            "train",
		Usage:           "train a model (default command); sft, dpo, kto, orpo, cpo, reward, grpo, rloo, ppo and distillation are TRL's commands",
		Flags:           completionFlags(),
		SkipFlagParsing: true,
		HideHelp:        true,
		Action: func(c *cli.Context) error {
			args := c.Args().Slice()
			if all := slices.Contains(args, "--help-all"); all || asksForHelp(args) {
				task := taskOf(args)
				text, err := Help(task, all)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(c.App.Writer, "Usage: %s train [--option value ...]\n\nOptions of task %s. For another task use --task NAME --help: %s.\n\n%s",
					c.App.Name, task, strings.Join(taskNames(), ", "), text)
				return err
			}
			loaded, err := Load(args, environ)
			if err != nil {
				return &LoadError{err}
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
	for _, o := range glance(args) {
		if o.name == "task" && slices.Contains(taskNames(), o.values[0]) {
			return o.values[0]
		}
	}
	ch, err := choose(nil)
	if err != nil {
		return ""
	}
	return ch.task.Name
}

// completionFlags are the training options as shell completion wants them.
func completionFlags() []cli.Flag {
	var flags []cli.Flag
	all := everything()
	for _, name := range all.names {
		flag := strings.ReplaceAll(name, "_", "-")
		if all.boolean[name] {
			flags = append(flags, &cli.BoolFlag{Name: flag})
		} else {
			flags = append(flags, &cli.StringFlag{Name: flag})
		}
	}
	return flags
}

// Flags makes cli flags of options of the default task, with its recipe's defaults, for other subcommands. It panics if
// the task has no such option.
func Flags(keys ...string) []cli.Flag {
	ch, err := choose(nil)
	if err != nil {
		panic(err)
	}
	c, err := ch.withRecipe()
	if err != nil {
		panic(err)
	}
	flags := make([]cli.Flag, len(keys))
	for i, key := range keys {
		flags[i] = flagOf(c.set.Find(key))
	}
	return flags
}

// OptionFlags makes cli flags that check and set options.
func OptionFlags(set *options.Set) []cli.Flag {
	var flags []cli.Flag
	for _, o := range set.All() {
		flags = append(flags, flagOf(o))
	}
	return flags
}

func flagOf(o *options.Option) cli.Flag {
	name := strings.TrimPrefix(options.Flag(o.Name), "--")
	switch v := o.Get().(type) {
	case bool:
		return &cli.BoolFlag{Name: name, Usage: o.Help, Value: v, Action: setting[bool](o)}
	case int:
		return &cli.IntFlag{Name: name, Usage: o.Help, Value: v, Action: setting[int](o)}
	case uint64:
		return &cli.Uint64Flag{Name: name, Usage: o.Help, Value: v, Action: setting[uint64](o)}
	case float64:
		return &cli.Float64Flag{Name: name, Usage: o.Help, Value: v, Action: setting[float64](o)}
	default:
		return &cli.StringFlag{Name: name, Usage: o.Help, Value: fmt.Sprint(v), Action: setting[string](o)}
	}
}

// setting checks the value of a flag and sets its option.
func setting[T any](o *options.Option) func(*cli.Context, T) error {
	return func(_ *cli.Context, given T) error {
		value, err := parse(o, entry{name: o.Name, value: options.Value{Text: fmt.Sprint(given)}})
		if err != nil {
			return usagef("%s: %v", options.Flag(o.Name), err)
		}
		o.Set(value)
		return nil
	}
}

// Arguments prepares argv (os.Args) for app.Run, and app for strictness. The command train is put in where none is named.
// For the other commands underscores in options become dashes, options may follow arguments, and unknown options, missing
// values and a wrong number of arguments are errors; a command takes as many as its ArgsUsage has words, or more where the
// last of them ends in dots.
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
		return append(slices.Clone(argv), "--help"), nil
	case args[len(args)-1] == "--generate-bash-completion" && (len(args) == 1 || !strings.HasPrefix(args[0], "-")):
		return argv, nil
	case slices.Contains([]string{"help", "h", "--help", "-h", "--version", "-v"}, args[0]):
		if len(args) == 2 && app.Command(args[1]) != nil {
			return []string{argv[0], args[1], "--help"}, nil
		}
		return argv[:2], nil
	case strings.HasPrefix(args[0], "-"):
		return append([]string{argv[0], "train"}, args...), nil
	case args[0] == "doctor" && len(args) > 1 && args[1] == "train":
		return append(append([]string{argv[0], "train"}, args[2:]...), "--dry-run"), nil
	}
	command := app.Command(args[0])
	if implied, ok := trlCommands[args[0]]; ok && command == nil {
		return append(append([]string{argv[0], "train"}, impliedBy(implied, args[1:])...), args[1:]...), nil
	}
	if command == nil {
		return nil, usagef("unknown command %s%s", args[0], commandHint(app, args))
	}
	if command.SkipFlagParsing {
		return argv, nil
	}
	words, args := []string{argv[0], command.Name}, args[1:]
	if len(command.Subcommands) > 0 && (len(args) > 0 || command.Action == nil) {
		if len(args) == 0 || strings.HasPrefix(args[0], "-") && !asksForHelp(args) {
			return nil, usagef("%s needs a command: %s", command.Name, strings.Join(commandNames(command.Subcommands), ", "))
		}
		if !strings.HasPrefix(args[0], "-") {
			i := slices.IndexFunc(command.Subcommands, func(c *cli.Command) bool { return c.HasName(args[0]) })
			if i < 0 {
				names := commandNames(command.Subcommands)
				return nil, usagef("unknown command %s of %s%s", args[0], command.Name, nearest.Hint(args[0], names, nil))
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

// trlCommands are TRL's commands, and the options of train that they imply.
var trlCommands = map[string][]string{
	"sft":          {"--task=chat"},
	"dpo":          {"--task=preference", "--algorithm=dpo"},
	"kto":          {"--task=preference", "--algorithm=dpo", "--dpo-loss=kto"},
	"orpo":         {"--task=preference", "--algorithm=dpo", "--dpo-loss=orpo"},
	"cpo":          {"--task=preference", "--algorithm=dpo", "--dpo-loss=cpo"},
	"reward":       {"--mode=reward_model"},
	"grpo":         {"--task=prompts", "--mode=rl_only", "--algorithm=grpo"},
	"rloo":         {"--task=prompts", "--mode=rl_only", "--algorithm=rloo"},
	"ppo":          {"--task=prompts", "--mode=rl_only", "--algorithm=ppo"},
	"distillation": {"--task=prompts", "--mode=rl_only", "--algorithm=distill"},
}

// commandHint says what to type instead of an unknown command.
func commandHint(app *cli.App, args []string) string {
	switch {
	case args[0] == "trl" && len(args) > 1:
		return fmt.Sprintf("; leave it out: rltrain %s", args[1])
	case args[0] == "vllm-serve":
		return "; use rltrain serve"
	}
	if hint := fileHint(args[0]); hint != "" {
		return hint
	}
	return nearest.Hint(args[0], append(commandNames(app.Commands), slices.Collect(maps.Keys(trlCommands))...), nil)
}

// fileHint says which option a file's name belongs to, for a name without one.
func fileHint(name string) string {
	plain := strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")
	switch filepath.Ext(plain) {
	case ".yaml", ".yml":
		return "; did you mean --config " + name + "?"
	case ".csv", ".json", ".jsonl", ".parquet", ".arrow":
		return "; did you mean --dataset " + name + "?"
	case ".gguf":
		return "; did you mean --model " + name + "?"
	}
	return ""
}

// impliedBy are the implied options that args do not set otherwise.
func impliedBy(implied, args []string) (kept []string) {
	given := glance(args)
	for _, one := range implied {
		name := canonical(strings.TrimPrefix(one[:strings.Index(one, "=")], "--"))
		// CPO's trainer has losses of its own, but its sigmoid is not DPO's.
		if !slices.ContainsFunc(given, func(o option) bool {
			return o.name == name || name == "dpo_loss" && o.name == "loss_type" && o.value().Text != "sigmoid"
		}) {
			kept = append(kept, one)
		}
	}
	return kept
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
	limits := limitsOf(boolean)
	var found faults
	given, positional := scan(args, func(name string) (bool, shape) {
		isBool, known := boolean[name]
		return known || limits != nil && slices.Contains(RowLimits, name), map[bool]shape{true: aSwitch}[isBool]
	}, func(typed string) error {
		return usagef("unknown option %s of %s%s", typed, command.Name, nearest.Hint(strings.TrimLeft(typed, "-"), all, options.Flag))
	}, &found)
	wanted := strings.Fields(command.ArgsUsage)
	switch {
	case len(positional) > 0 && len(wanted) == 0:
		found.add(usagef("unexpected argument %q: %s takes only options, as --name=value", positional[0], command.Name))
	case len(wanted) > 0 && strings.HasSuffix(wanted[len(wanted)-1], "...") && len(positional) >= len(wanted):
	case len(positional) != len(wanted) && found.none():
		noun := "arguments"
		if len(wanted) == 1 {
			noun = "argument"
		}
		found.add(usagef("%s needs %d %s, %s, not %d", command.Name, len(wanted), noun, command.ArgsUsage, len(positional)))
	}
	if err := found.err(); err != nil {
		return nil, err
	}
	var parsed []string
	for _, o := range given {
		names := []string{o.name}
		if slices.Contains(RowLimits, o.name) {
			names = limits
		}
		for _, name := range names {
			parsed = append(parsed, options.Flag(name)+"="+o.value().Text)
		}
	}
	return append(append(parsed, "--"), positional...), nil
}

// RowLimits are the names of how many rows or problems a command reads. Each of them means the one that applies.
var RowLimits = []string{"eval_samples", "max_samples", "limit"}

// limitsOf are those of RowLimits that a command has.
func limitsOf(flags map[string]bool) (limits []string) {
	for _, name := range RowLimits {
		if _, has := flags[name]; has {
			limits = append(limits, name)
		}
	}
	return limits
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

// ProblemFlags returns, for other subcommands, the flags of the options by which tasks show and verify problems, without
// those named in except; Load reads their values.
func ProblemFlags(except ...string) []cli.Flag {
	var flags []cli.Flag
	seen := map[string]bool{}
	for _, name := range except {
		seen[name] = true
	}
	for _, d := range envs.Definitions() {
		if !d.Plays() || d.Labels() {
			continue
		}
		of := options.MustRead(&struct {
			Settings any
			Answers  Answers
			Form     PromptForm
		}{Settings: d.Options()})
		for _, o := range of.All() {
			if seen[o.Name] {
				continue
			}
			seen[o.Name] = true
			name := strings.TrimPrefix(options.Flag(o.Name), "--")
			if o.Kind == reflect.Bool {
				flags = append(flags, &cli.BoolFlag{Name: name, Usage: o.Help})
			} else {
				flags = append(flags, &cli.StringFlag{Name: name, Usage: o.Help, DefaultText: "the task's default"})
			}
		}
	}
	return flags
}
