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

// runApp runs an application as main builds it, and returns the commands that ran.
func runApp(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var log strings.Builder
	flags := Flags("dataset", "text_column", "batch_size", "lora_dropout", "seed", "resume", "device")
	record := func(c *cli.Context) error {
		log.WriteString(c.Command.Name + " dataset=" + c.String("dataset") + " text=" + c.String("text-column") +
			" args=" + strings.Join(c.Args().Slice(), "|"))
		if c.Bool("resume") {
			log.WriteString(" resume")
		}
		return nil
	}
	app := &cli.App{
		Name:      "rltrain",
		Writer:    &log,
		ErrWriter: &log,
		Commands: []*cli.Command{
			TrainCommand(nil, func(_ context.Context, c *Config) error {
				log.WriteString("train " + c.General.Mode)
				return nil
			}),
			{Name: "eval", Flags: flags, Action: record},
			{Name: "compare", ArgsUsage: "DIR_A DIR_B", Flags: flags, Action: record},
			{Name: "models", Action: record, Subcommands: []*cli.Command{{Name: "pull", ArgsUsage: "NAME", Action: record}}},
		},
	}
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
		{"models", "models dataset= text= args="},
		{"models pull a", "pull dataset= text= args=a"},
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
		{"models --dataset d", "models needs a command: pull"},
		{"models pul a", "unknown command pul of models; did you mean pull?"},
		{"trl", "unknown command trl"},
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
		"models --help":          "pull",
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

// trlCommandLines are the command lines in the scripts of TRL 1.16 and in its documentation, and of open-r1's, with files
// in place of the Hub's names. want is the error; "" if it runs.
var trlCommandLines = []struct{ line, want string }{
	{"sft --model_name_or_path M --dataset_name D --learning_rate 2.0e-5 --num_train_epochs 1 --packing --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --eos_token <|im_end|> --eval_strategy steps --eval_steps 100 --output_dir Qwen2-0.5B-SFT --push_to_hub",
		"--push_to_hub: … uploads nothing … hf upload … remove it"},
	{"sft --model_name_or_path M --dataset_name D --learning_rate 2.0e-4 --num_train_epochs 1 --packing --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --eos_token <|im_end|> --eval_strategy steps --eval_steps 100 --use_peft --lora_r 32 --lora_alpha 16 --output_dir Qwen2-0.5B-SFT", ""},
	{"dpo --dataset_name D --model_name_or_path M --learning_rate 5.0e-7 --num_train_epochs 1 --per_device_train_batch_size 2 --max_steps 1000 --gradient_accumulation_steps 8 --eval_strategy steps --eval_steps 50 --output_dir Qwen2-0.5B-DPO --no_remove_unused_columns", ""},
	{"dpo --dataset_name D --model_name_or_path M --learning_rate 5.0e-6 --num_train_epochs 1 --per_device_train_batch_size 2 --max_steps 1000 --gradient_accumulation_steps 8 --eval_strategy steps --eval_steps 50 --output_dir Qwen2-0.5B-DPO --no_remove_unused_columns --use_peft --lora_r 32 --lora_alpha 16", ""},
	{"kto --dataset_name D --model_name_or_path=M --per_device_train_batch_size 16 --num_train_epochs 1 --learning_rate 5e-7 --lr_scheduler_type=cosine --gradient_accumulation_steps 1 --eval_steps 500 --output_dir=kto-aligned-model --warmup_steps 0.1 --logging_first_step", ""},
	{"kto --dataset_name D --model_name_or_path=M --per_device_train_batch_size 8 --num_train_epochs 1 --learning_rate 5e-7 --lr_scheduler_type=cosine --gradient_accumulation_steps 1 --eval_steps 500 --output_dir=kto-aligned-model-lora --warmup_steps 0.1 --logging_first_step --use_peft --load_in_4bit --lora_target_modules=all-linear --lora_r=16 --lora_alpha=16", ""},
	{"distillation --model_name_or_path M --teacher_model_name_or_path N --dataset_name D --learning_rate 2.0e-5 --num_train_epochs 1 --output_dir Qwen2.5-0.5B-Distillation", ""},
	{"distillation --model_name_or_path M --teacher_model_name_or_path N --dataset_name D --learning_rate 2.0e-4 --num_train_epochs 1 --output_dir Qwen2.5-0.5B-Distillation --use_peft --lora_r 32 --lora_alpha 16", ""},
	{"sft --torch_dtype bfloat16 --model_name_or_path M --packing --run_name 20b-full-eager --attn_implementation kernels-community/vllm-flash-attn3 --dataset_num_proc 12 --dataset_name D --gradient_checkpointing --max_length 4096 --per_device_train_batch_size 2 --num_train_epochs 1 --logging_steps 1 --warmup_ratio 0.03 --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {\"min_lr_rate\":0.1} --output_dir gpt-oss-20b-multilingual-reasoner --report_to trackio --seed 42",
		`--report_to: "trackio" is not one of tensorboard, wandb, none`},
	{"reward --model_name_or_path M --dataset_name D --output_dir Qwen2-0.5B-Reward --per_device_train_batch_size 8 --num_train_epochs 1 --gradient_checkpointing True --learning_rate 1.0e-5 --eval_strategy steps --eval_steps 50 --max_length 2048", ""},
	{"reward --model_name_or_path M --dataset_name D --output_dir Qwen2-0.5B-Reward-LoRA --per_device_train_batch_size 8 --num_train_epochs 1 --gradient_checkpointing True --learning_rate 1.0e-4 --eval_strategy steps --eval_steps 50 --max_length 2048 --use_peft --lora_task_type SEQ_CLS --lora_r 32 --lora_alpha 16", ""},
	{"grpo --model_name_or_path M --dataset_name D --reward_funcs accuracy_reward", ""},
	{"grpo --model_name_or_path M --dataset_name D --reward_funcs accuracy_reward think_format_reward --output_dir g --num_generations 8 --use_vllm --vllm_mode colocate --learning_rate 1e-5 --dtype bfloat16 --max_completion_length 1024 --use_peft --lora_target_modules q_proj v_proj --log_completions --logging_steps 2 --gradient_checkpointing", ""},
	{"rloo --model_name_or_path M --dataset_name D --reward_funcs accuracy_reward --output_dir o", ""},
	{"orpo --dataset_name D --model_name_or_path=M --per_device_train_batch_size 4 --max_steps 1000 --learning_rate 8e-5 --gradient_accumulation_steps 1 --logging_steps 10 --eval_steps 500 --output_dir=gpt2-aligned-orpo --warmup_steps 150 --report_to wandb --bf16 --logging_first_step --no_remove_unused_columns --use_peft --lora_r=16 --lora_alpha=16", ""},
	{"cpo --dataset_name D --model_name_or_path=M --per_device_train_batch_size 4 --max_steps 1000 --learning_rate 8e-6 --gradient_accumulation_steps 1 --logging_steps 10 --eval_steps 500 --output_dir=gpt2-aligned-cpo --warmup_steps 150 --report_to wandb --bf16 --logging_first_step --no_remove_unused_columns", ""},
	{"ppo --dataset_name D --dataset_train_split descriptiveness --learning_rate 3e-6 --output_dir models/minimal/ppo --per_device_train_batch_size 64 --gradient_accumulation_steps 1 --total_episodes 10000 --model_name_or_path M --missing_eos_penalty 1.0",
		"--dataset_train_split: … --total_episodes: … num_steps … --missing_eos_penalty: "},
	{"dpo --model_name_or_path M --reward_model_path R --dataset_name D --learning_rate 5.0e-7 --output_dir pythia-1b-tldr-online-dpo --per_device_train_batch_size 8 --gradient_accumulation_steps 16 --warmup_ratio 0.1 --missing_eos_penalty 1.0",
		"--reward_model_path: … reward=model:DIR; --missing_eos_penalty: "},
	{"sft --model_name_or_path M --dataset_name D --dataset_config all --eos_token <|im_end|> --learning_rate 4.0e-5 --num_train_epochs 5 --max_seq_length 32768 --per_device_train_batch_size 2 --gradient_checkpointing --bf16 --use_liger_kernel --output_dir data/OpenR1-Distill-7B", ""},
	{"sft --model_name_or_path M --dataset_name D --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --output_dir o --optim paged_adamw_8bit --use_peft --load_in_4bit --bnb_4bit_quant_type nf4 --bf16 --tf32 --report_to none --max_steps 100 --neftune_noise_alpha 5 --assistant_only_loss",
		"--tf32: "},
}

// TestTRLCommandLines: each command line runs, or is refused with all reasons at once.
func TestTRLCommandLines(t *testing.T) {
	for _, test := range trlCommandLines {
		t.Run(test.line[:min(60, len(test.line))], func(t *testing.T) {
			out, err := runApp(t, strings.Fields(test.line)...)
			switch {
			case test.want == "" && (err != nil || !strings.HasPrefix(out, "train ")):
				t.Errorf("%q, %v", out, err)
			case test.want != "" && !expect.Names(err, test.want):
				t.Errorf("\n got %v\nwant %s", err, test.want)
			}
		})
	}
}
