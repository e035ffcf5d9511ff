package config

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// newApp builds an application as main does; each command that runs is appended to log.
func newApp(t *testing.T, log *strings.Builder) *cli.App {
	t.Helper()
	flags := Flags("dataset", "text_column", "batch_size", "lora_dropout", "seed", "resume", "device")
	record := func(c *cli.Context) error {
		log.WriteString(c.Command.Name + " dataset=" + c.String("dataset") + " text=" + c.String("text-column") +
			" args=" + strings.Join(c.Args().Slice(), "|"))
		if c.Bool("resume") {
			log.WriteString(" resume")
		}
		return nil
	}
	return &cli.App{
		Name:      "rltrain",
		Writer:    log,
		ErrWriter: log,
		Commands: []*cli.Command{
			TrainCommand(nil, func(_ context.Context, c *Config) error {
				log.WriteString("train " + c.General.Mode)
				return nil
			}),
			{Name: "eval", Flags: flags, Action: record},
			{Name: "compare", ArgsUsage: "DIR_A DIR_B", Flags: flags, Action: record},
		},
	}
}

func runApp(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var log strings.Builder
	app := newApp(t, &log)
	argv, err := Arguments(app, append([]string{"rltrain"}, args...))
	if err == nil {
		err = app.Run(argv)
	}
	return log.String(), err
}

func TestApp(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"train", "train supervised_then_rl"},
		{"--mode supervised", "train supervised"},
		{"train --mode=supervised", "train supervised"},
		{"sft --dataset_name d", "train supervised"},
		{"grpo --dataset_name d --model_name_or_path m --reward_funcs accuracy_reward", "train rl_only"},
		{"dpo --dataset_name d --loss_type ipo", "train rl_only"},
		{"reward --dataset_name d --model_name_or_path m", "train reward_model"},
		{"grpo --task math --dataset d --model m", "train rl_only"},
		{"orpo --dataset_name d --model_name_or_path m", "train rl_only"},
		{"cpo --dataset_name d --model_name_or_path m", "train rl_only"},
		{"cpo --dataset_name d --model_name_or_path m --loss_type simpo", "train rl_only"},
		{"ppo --dataset_name d --model_name_or_path m", "train rl_only"},
		{"distillation --dataset_name d --model_name_or_path m --teacher_model_name_or_path n", "train rl_only"},
		{"eval", "eval dataset= text=text args="},
		{"eval --text_column q --dataset a,b.csv --resume", "eval dataset=a,b.csv text=q args= resume"},
		{"compare A B --dataset d.csv", "compare dataset=d.csv text=text args=A|B"},
		{"compare A --resume B", "compare dataset= text=text args=A|B resume"},
		{"compare -- A --b", "compare dataset= text=text args=A|--b"},
	} {
		t.Run(test.args, func(t *testing.T) {
			expect.Equal(t, test.want, must.Get(runApp(t, strings.Fields(test.args)...))(t))
		})
	}
}

func TestAppErrors(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"evil", "unknown command evil; did you mean eval?"},
		{"trl sft --dataset_name d", "unknown command trl; leave it out: rltrain sft"},
		{"vllm-serve --model m", "unknown command vllm-serve; use rltrain serve"},
		{"rolo --model m", "unknown command rolo; did you mean rloo?"},
		{"tickets.csv", "unknown command tickets.csv; did you mean --dataset tickets.csv?"},
		{"rows.jsonl.gz", "unknown command rows.jsonl.gz; did you mean --dataset rows.jsonl.gz?"},
		{"sft recipe.yaml --dataset d", `unexpected argument "recipe.yaml": write settings as --name=value; did you mean --config recipe.yaml?`},
		{"train sft --dataset d", `unexpected argument "sft": … did you mean rltrain sft?`},
		{"train model.gguf --dataset d", `unexpected argument "model.gguf": … did you mean --model model.gguf?`},
		{"cpo --dataset d --model m --loss_type sigmoid", "--dpo-loss and --loss_type … [cpo] and [sigmoid]; keep one"},
		{"--epoch=3", "unknown option --epoch; … --epochs (Supervised stage)?"},
		{"train models", `unexpected argument "models" … --name=value`},
		{"eval --datset d", "unknown option --datset of eval; … --dataset?"},
		{"eval --dataset", "--dataset: needs a value"},
		{"eval A", `unexpected argument "A": eval … --name=value`},
		{"eval --dataset d A", `unexpected argument "A": eval … --name=value`},
		{"eval A --datset d --batch 3", `unknown option --datset of eval; did you mean --dataset?; unknown option --batch of eval; did you mean --batch-size?; unexpected argument "A": eval takes only options, as --name=value`},
		{"compare A", "compare needs 2 arguments, DIR_A DIR_B, not 1"},
		{"eval --batch-size two", `--batch-size: "two" is not a valid value`},
		{"eval --resume=maybe", `--resume: "maybe" is not a valid value`},
		{"eval --batch-size 0", "--batch-size: 0 … 1 to 1048576"},
		{"eval --lora-dropout 2", "--lora-dropout: 2 … at least 0 and less than 1"},
		{"eval --device gpu", `--device: unknown device "gpu"; use auto, cpu, cuda or cuda:NUMBER`},
	} {
		t.Run(test.args, func(t *testing.T) {
			out, err := runApp(t, strings.Fields(test.args)...)
			var usage *UsageError
			expect.Require(t, errors.As(err, &usage), "got %v, want a *UsageError", err)
			expect.True(t, expect.Names(err, test.want) && (strings.Contains(test.want, " … ") || err.Error() == test.want), "\n got %s\nwant %s", err, test.want)
			expect.Same(t, "", out, "printed")
		})
	}
}

func TestAppHelp(t *testing.T) {
	for args, want := range map[string]string{
		"--help":                 "compare",
		"help":                   "compare",
		"help eval":              "--text-column value",
		"eval A --help":          "--text-column value",
		"train --help":           "--rl-episodes N",
		"help train":             "--rl-episodes N",
		"--epochs=3 -h":          "--rl-episodes N",
		"--task chat -h":         "--help-all shows ",
		"--help-all":             "--lora-alpha N",
		"--help-all --task=chat": "--packing",
		"help nonsense":          "compare",
		"--help ignored":         "compare",
	} {
		got, err := runApp(t, strings.Fields(args)...)
		expect.True(t, err == nil && strings.Contains(got, want), "%s: error %v, no %q in\n%s", args, err, want, got)
	}
}

// TestHelpGolden holds one task's full help, and for the others only the lines that differ.
func TestHelpGolden(t *testing.T) {
	const full = "sum_digits"
	known := map[string]bool{}
	var differences strings.Builder
	for _, task := range append([]string{full}, taskNames()...) {
		short, err := Help(task, false)
		n := strings.Count(short, "\n  --")
		expect.True(t, err == nil && n >= 10 && n <= 26, "%s: the short help has %d options, %v", task, n, err)
		got := must.Get(Help(task, true))(t)
		if len(known) == 0 {
			golden(t, "testdata/help_"+full+".txt", got)
		}
		differences.WriteString("=== " + task + "\n")
		for line := range strings.Lines(got) {
			expect.True(t, len(line) <= helpWidth+1, "line of %d columns: %s", len(line)-1, line)
			if !known[line] && task != full {
				differences.WriteString(line)
			}
		}
		if len(known) == 0 {
			for line := range strings.Lines(got) {
				known[line] = true
			}
		}
	}
	golden(t, "testdata/help_differences.txt", differences.String())
}
