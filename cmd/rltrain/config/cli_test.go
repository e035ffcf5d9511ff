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
		{"eval --datset d", "unknown option --datset of eval; … --dataset?"},
		{"eval --dataset", "--dataset: needs a value"},
		{"eval --dataset d A", `unexpected argument "A": eval … --name=value`},
		{"eval A --datset d --batch 3", `unknown option --datset of eval; did you mean --dataset?; unknown option --batch of eval; did you mean --batch-size?; unexpected argument "A": eval takes only options, as --name=value`},
		{"compare A", "compare needs 2 arguments, DIR_A DIR_B, not 1"},
		{"eval --batch-size two", `--batch-size: "two" is not a valid value`},
		{"eval --batch-size 0", "--batch-size: 0 … 1 to 1048576"},
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

func TestUsageErrors(t *testing.T) {
	for _, test := range []struct {
		args []string
		env  string
		yaml string
		want string
	}{
		// Names.
		{args: []string{"--epoch", "3"}, want: "unknown option --epoch; … --epochs"},
		{args: []string{"-epochs", "3"}, want: "unknown option -epochs; … --epochs"},
		{args: []string{"--lr=1"}, want: "--lr: use learning_rate (supervised stage) or rl_learning_rate"},
		{args: []string{"--task=chat", "--dataset=d", "--pooling=mean"}, want: "--pooling: … task chat; … intent, preference, text"},
		{args: []string{"--algorithm=grop"}, want: `--algorithm: "grop" … a2c, dqn, grpo, ppo, reinforce, rloo … grpo?`},
		{args: []string{"--algorithm=dqn", "--epsilon-start=0.5", "--epsilon-end=0.6"}, want: "--epsilon-end: 0.6 is above epsilon_start 0.5; exploration must not grow"},
		{args: []string{"--buffer-size=16", "--samples-per-prompt=32"}, want: "--buffer-size: 16 is less than samples_per_prompt 32: it holds no text with all its samples"},
		{args: []string{"--task=sum_digits", "--clip-low=0.1"}, want: "--clip-low: … with --algorithm … grpo … ppo … rloo"},
		{args: []string{"--task=sum_digits", "--minibatches=2"}, want: "--minibatches: … with another --algorithm than … reinforce"},
		{args: []string{"--algorithm=dpo"}, want: "task preference needs --dataset FILE, with columns chosen and rejected, or prompt, completion and label"},
		{args: []string{"--task=sum_digits", "--algorithm=dpo", "--loss-type=kto"}, want: "--loss-type: kto takes single responses, and the policy's completions are compared in pairs; choose another loss"},
		{args: []string{"--task=sum_digits", "--use_dpo", "--samples-per-prompt=1"}, want: "--samples-per-prompt: 1 is too few: a pair needs at least 2"},
		{args: []string{"--task=text", "--algorithm=dqn", "--policy=generate"}, want: "--algorithm: dqn needs --policy head or score"},
		{args: []string{"--task=text", "--algorithm=distill", "--policy=head"}, want: "--algorithm: distill needs --policy generate"},
		{args: []string{"--task=sum_digits", "--max-staleness=2"}, want: "--max-staleness: … with --async"},
		{args: []string{"--task=sum_digits", "--kl-type=k1"}, want: "--kl-type: … with --kl-coef above 0"},
		{args: []string{"--task=sum_digits", "--overlong-buffer=200"}, want: "--overlong-buffer: 200 is more than the longest completion, 160 tokens"},
		{args: []string{"--task=sum_digits", "--algorithm=grpo", "--minibatches=300"}, want: "--minibatches: 300 is more than the 256 completions of a step"},
		{args: []string{"--task=reverse_digits", "--digits-count=3"}, want: "--digits-count: … task reverse_digits; … sum_digits"},
		{args: []string{"--task=chat", "--dataset=d", "--mode=rl_only"}, want: `--mode: "rl_only": the only choice is supervised`},
		{args: []string{"--task=sum_digits", "--batch-size=99999999999"}, want: "--batch-size: 99999999999 … 1 to 1048576"},
		{args: []string{"--task=chat"}, want: "task chat needs --dataset FILE, with a column text or messages, or prompt and completion"},
		{args: []string{"--task=sum_digits", "--mode=rl_only", "--pretrained-model=p", "--tiny-layers=2"}, want: "--tiny-layers: … without --pretrained-model"},
		{args: []string{"--task=sum_digits", "--mode=rl_only", "--pretrained-model=p", "--model=m"}, want: "--model: cannot be combined with --pretrained-model"},
		{args: []string{"--task=chat", "--dataset=d", "--tuning=full", "--lora-r=2"}, want: "--lora-r: … with --tuning lora"},
		{args: []string{"--task=sum_digits", "--tuning=lora", "--engine=http://host:8000"}, want: `--engine: "http://host:8000" is not an address such as tinker:http://host:8000`},
		{args: []string{"--task=sum_digits", "--engine=tinker:http://h"}, want: "--tuning: a service (--engine) trains adapters: use --tuning lora"},
		{args: []string{"--task=chat", "--dataset=d", "--model=m", "--engine=tinker:http://h", "--lora-alpha=16"}, want: "--lora-alpha: cannot be combined with --engine: a service has 32"},
		{args: []string{"--task=chat", "--dataset=d", "--model=m", "--engine=tinker:http://h", "--label-smoothing-factor=0.1"}, want: "--label-smoothing-factor: cannot be combined with --engine: needs the probabilities of all tokens"},
		{args: []string{"--task=gsm8k"}, want: "task gsm8k needs --dataset FILE, with columns question and answer, or problem and solution"},
		{args: []string{"--gradient-accumulation-steps=2.5"}, want: "--gradient-accumulation-steps: must be an integer from 1 to 1048576"},
		{args: []string{"--steps-per-generation=2"}, want: "--steps-per-generation: use minibatches, with an algorithm that samples new completions"},
		{args: strings.Fields("--task sum_digits --mode rl_only --model m --per-device-train-batch-size 5 --gradient-accumulation-steps 3 --num-generations 4"),
			want: "--per-device-train-batch-size: 5 × 3 completions per step are not a multiple of 4 samples per prompt; set prompts_per_step and samples_per_prompt"},
		{args: strings.Fields("--task sum_digits --mode rl_only --model m --per-device-train-batch-size 8 --prompts-per-step 3 --num-generations 4"),
			want: "--per-device-train-batch-size: prompts_per_step already sets the prompts of a step; keep one of the two"},
		{args: strings.Fields("--task sum_digits --mode rl_only --model m --algorithm grpo --steps-per-generation 3 --gradient-accumulation-steps 2"),
			want: "--gradient-accumulation-steps: 3 batches per rollout are not a multiple of 2 batches per update"},
		{args: []string{"--task=math", "--dataset=d", "--sym-calc"}, want: "--sym-calc: … task math; … gsm8k"},
		{args: []string{"--task=gsm8k", "--dataset=d", "--sym-calc", "--annotate=false"}, want: "--sym-calc: needs <<expression=result>> in the prompt, but annotate=false removes it; drop one of the two"},
		{args: []string{"--task=gsm8k", "--dataset=d", "--ref-model-name=m", "--update-ref-iterations=1"}, want: "--update-ref-iterations: … without --reference-model"},
		{args: []string{"--task=gsm8k", "--dataset=d", "--judge-scale=2"}, want: "--judge-scale: set a weight in reward, such as reward=score=0.2"},
		{args: []string{"--task=gsm8k", "--dataset=d", "--cache-buffer"}, want: "--cache-buffer: … with --buffer-cache FILE"},
		{args: []string{"--task=gsm8k", "--dataset=d", "--buffer-cache-path=b.pkl"}, want: "--buffer-cache-path: b.pkl: reading a Python pickle runs code; the buffer is a file of JSON lines: name it .jsonl"},
		{args: []string{"--task=gsm8k", "--dataset=d", "--num-update-steps=8"}, want: "--rl-batch-size: 32 is more than num_update_steps 8: no batch would fill"},
		{args: []string{"--task=gsm8k", "--dataset=d", "--return-min=11"}, want: "--return-min: 11 is above return_max 10"},
		{args: []string{"--task=gsm8k", "--dataset=d", "--cache-dir=h"}, want: "--cache-dir: set the variables HF_HOME or HF_HUB_CACHE"},
		{args: []string{"--task=gsm8k", "--dataset=d", "--qlora"}, want: "--qlora: write quantize=nf4 and tuning=lora"},
		{args: []string{"--task=gsm8k", "--dataset=d", "--optim=sgd"}, want: `--optim: "sgd" is not one of adamw, adamw_8bit, muon`},
		{args: []string{"--push_to_hub", "--use_dora", "--neftune_noise_alpha", "5"}, want: `--push_to_hub: "true": … use false; --use_dora: does not apply to task intent; … --neftune_noise_alpha: does not apply to task intent; it applies to chat`},
		{args: []string{"--a\nb"}, want: `unknown option --a\nb`},
		{args: []string{"--classifier.rl_training.gamma=1"}, want: "unknown option --classifier.rl_training.gamma"},
		{env: "RLTRAIN_epochs=3", want: "unknown environment variable RLTRAIN_epochs; … RLTRAIN_EPOCHS"},
		{yaml: "seed: 1\nepoch: 3", want: "c.yaml:2:1: unknown key epoch; … epochs"},
		{yaml: "bert_model: {model_id: m}", want: "c.yaml:1:1: unknown key bert_model; … base_model"},

		// All mistakes are reported at once, each with its closest match.
		{args: []string{"--epoch", "3", "--batch=4", "--gama", "1", "--seed=x"}, want: `unknown option --epoch; did you mean --epochs (Supervised stage)?; unknown option --batch; did you mean --batch-size (Supervised stage)?; unknown option --gama; did you mean --gamma (Reinforcement learning stage)?; --seed: "x" is not an integer of at least 0`},
		{args: []string{"--epochs=0", "--mode=rl", "--rl-episodes=two", "stray"}, env: "RLTRAIN_EPOCH=3", yaml: "lora_r: 0", want: `unexpected argument "stray": write settings as --name=value; unknown environment variable RLTRAIN_EPOCH; did you mean RLTRAIN_EPOCHS (Supervised stage)?; c.yaml:1:1: lora_r: 0 is out of range; it must be 1 to 1024; --epochs: 0 is out of range; it must be at least 1; --mode: "rl" is not one of supervised_then_rl, supervised, rl_only; --rl-episodes: "two" is not an integer`},
		{args: []string{"--streaming", "--scale_reward=none"}, want: `unknown option --scale_reward; did you mean --scale-rewards (Reinforcement learning stage)?; --streaming: "true": rows are held in memory; see max_samples; remove it or use false`},

		// Errors that involve several options.
		{args: []string{"--task=sum_digits", "--baseline=none", "--advantage-scale=group"}, want: "baseline none cannot be divided by the group's standard deviation: choose baseline group, or scale none"},
		{args: []string{"--task=sum_digits", "--algorithm=ppo", "--value-coef=0"}, want: "--value-coef: 0 … more than 0"},
		{args: []string{"--task=sum_digits", "--async", "--baseline=greedy"}, want: "baseline greedy does not work with async: the greedy completions would be of another policy; choose baseline group or batch"},
		{args: []string{"--task=sum_digits", "--judge=m", "--reward=rubric:r.yaml", "--judge-url=host:8000"}, want: "--judge-url: … host:8000"},
		{args: []string{"--task=chat", "--dataset=d", "--model=m", "--init-lora-weights=orthogonal", "--lora-r=7"}, want: "--init-lora-weights: … 7"},
		{args: []string{"--init-lora-weights=pissa"}, want: "--init-lora-weights: … language models"},
		{args: []string{"--task=chat", "--dataset=d", "--model=m", "--init-lora-weights=pissa", "--quantize=nf4"}, want: "--init-lora-weights: … quantize=nf4"},
		{args: []string{"--task=chat", "--dataset=d", "--model=m", "--curriculum-column=c", "--packing"}, want: "--curriculum-column: applies only with --packing=false"},
		{args: []string{"--task=intent", "--mode=supervised", "--rl-share=0.2"}, want: "--rl-share: does not apply to mode supervised; it applies to supervised_then_rl"},
		{args: []string{"--task=sum_digits", "--judge=m", "--reward=rubric:r.yaml", "--async"}, want: "--judge: … async"},
		{args: []string{"--task=prompts", "--dataset=d", "--difficulty-pools", "--curriculum-column=c"}, want: "--curriculum-column: … difficulty_pools"},
		{args: []string{"--task=sum_digits", "--async", "--dynamic-sampling"}, want: "dynamic_sampling does not work with async: the next prompts depend on rewards that are not known yet"},
		{args: []string{"--task=sum_digits", "--async", "--top-k=5"}, want: "async needs importance weights over the unfiltered distribution: leave out top_k, top_p, min_p and repetition_penalty"},
		{args: []string{"--task=sum_digits", "--algorithm=sdpo", "--include-environment-feedback"}, want: "--include-environment-feedback: is for tasks that run tests, such as code"},
		{args: []string{"--task=sum_digits", "--kl-coef=0.1", "--kl-type=k1"}, want: "--kl-type: k1 as a loss has a gradient of mean 0: use k2 or k3, or kl_in_reward"},

		// Episodes with one action have nothing to discount.
		{args: []string{"--gamma=0.9", "--gae-lambda=0.9"}, want: "--gamma: applies only where an episode has several actions; --gae-lambda: applies only where an episode has several actions"},
		{args: []string{"--task=sum_digits", "--gamma=0.9"}, want: "--gamma: … with --algorithm a2c or ppo or … reinforce_replay"},

		// Shape of the command line.
		{args: []string{"models"}, want: `unexpected argument "models" … --name=value`},
		{args: []string{"--epochs=2", "--", "x"}, want: `unexpected argument "x" … --name=value`},
		{args: []string{"-1"}, want: `unexpected argument "-1" … --name=value`},
		{args: []string{"--epochs"}, want: "--epochs: needs a value"},
		{args: []string{"--mode", "--epochs", "3"}, want: "--mode: needs a value, but --epochs follows; write --mode=VALUE if the value starts with --"},

		// Values.
		{args: []string{"--epochs", "two"}, want: `--epochs: "two" … integer`},
		{yaml: "epochs: " + strings.Repeat("[", 40000), want: "c.yaml: line 1: nested more than 100 deep"},
		{args: []string{"--epochs=0"}, want: "--epochs: 0 … at least 1"},
		{args: []string{"--seed=-1"}, want: `--seed: "-1" … integer of at least 0`},
		{args: []string{"--warmup-ratio", "1.5"}, want: "--warmup-ratio: 1.5 … 0 to 1"},
		{args: []string{"--task=sum_digits", "--step-timeout=1e-12"}, want: "--step-timeout: 1e-12 … 0, or 0.001 to 1000000"},
		{args: []string{"--lora-dropout=1"}, want: "--lora-dropout: 1 … at least 0 and less than 1"},
		{args: []string{"--clip-low=0"}, want: "--clip-low: 0 … more than 0 and less than 1"},
		{args: []string{"--learning_rate", "-1e-3"}, want: "--learning_rate: -1e-3 … more than 0"},
		{args: []string{"--task=cobol"}, want: `--task: "cobol" … chat, code, decisions, env, gsm8k, intent, math, preference, prompts, reverse_digits, sum_digits, text`},
		{args: []string{"--device=cuda:x"}, want: `--device: unknown device "cuda:x"; use auto, cpu, cuda or cuda:NUMBER`},
		{args: []string{"--report-to=none,wandb"}, want: `--report-to: none cannot be combined`},
		{args: []string{"--mode=reward_model", "--dataset=p.jsonl", "--model=tiny"}, want: `--model: tiny has random weights, and an adapter on them makes no reward model: use a trained model, such as the folder of a supervised stage`},
		{args: []string{"--wandb-project=p"}, want: `--wandb-project: needs report_to=wandb`},
		{yaml: "epochs: 2.5", want: `c.yaml:1:1: epochs: "2.5" … integer`},
		{yaml: "seed: true", want: `c.yaml:1:1: seed: "true" … integer of at least 0`},
		{yaml: "model: 12", want: `c.yaml:1:1: model: 12 is not text; put it in quotes: "12"`},
		{yaml: "model: [a]", want: "c.yaml:1:1: model: expected text, not a list"},
		{yaml: "model: {a: b}", want: "c.yaml:1:1: model: must be a value or a list, not a section"},
		{yaml: "model:", want: "c.yaml:1:1: model: has no value; add one or remove the key"},
		{yaml: "model: &m x", want: "c.yaml:1:1: model: anchors, aliases and tags are not supported; write the value"},
		{yaml: "lora_target_modules: [a, 3, [b]]", want: "c.yaml:1:1: lora_target_modules: must be a value or a list, not a section"},

		// Shape of the file.
		{yaml: "# nothing\n", want: "c.yaml: no settings"},
		{yaml: strings.Repeat("#", maxFileSize+1), want: "c.yaml: configuration files are limited to 262144 bytes"},
		{yaml: "- a", want: "c.yaml:1:1: write settings as key: value"},
		{yaml: "seed: 1\nseed: 2", want: `c.yaml:2:1: mapping key "seed" already defined at [1:1]`},
		{yaml: "seed: [1", want: "c.yaml:1:7: sequence end token ']' not found"},
		{yaml: "seed: 1\n---\nepochs: 2", want: "c.yaml: 2 YAML documents; use one"},
		{yaml: "config: d.yaml", want: "c.yaml:1:1: config: belongs on the command line, not in a file; remove it"},
		{yaml: "classifier: 3", want: "c.yaml:1:1: classifier: needs a section rl_training"},
		{yaml: "classifier:\n  category_model: {}", want: "c.yaml:1:1: classifier: needs a section rl_training, the only one that is read"},
		{yaml: "classifier:\n  rl_training: true", want: "c.yaml:2:3: classifier.rl_training: needs keys such as enabled, learning_rate and reward_metric"},
		{yaml: "classifier:\n  rl_training:\n    gama: 1", want: "c.yaml:3:5: unknown key classifier.rl_training.gama; … gamma"},
		{yaml: "classifier:\n  rl_training:\n    algorithm: dpo", want: `c.yaml:3:5: classifier.rl_training.algorithm: "dpo" … a2c, dqn, grpo, ppo, reinforce, rloo … ppo?`},
		{yaml: "classifier:\n  rl_training:\n    enabled: maybe", want: `c.yaml:3:5: classifier.rl_training.enabled: "maybe" … true or false`},
		{yaml: "classifier:\n  rl_training: {enabled: false, gamma: 2}", want: "c.yaml:2:33: classifier.rl_training.gamma: 2 … 0 to 1"},

		// Two names, two values.
		{args: []string{"--epochs=2", "--epochs=3"}, want: "--epochs: given twice: 2 and 3; keep one"},
		{args: []string{"--reward=f1", "--reward-metric=accuracy"}, want: "--reward … --reward-metric … reward … f1 and accuracy"},
		{env: "RLTRAIN_LORA_R=1 RLTRAIN_LORA_RANK=2", want: "RLTRAIN_LORA_R … RLTRAIN_LORA_RANK … lora_r … 1 and 2"},
		{yaml: "update_epochs: 5\nclassifier:\n  rl_training: {update_epochs: 6}", want: "c.yaml:3:17: update_epochs … classifier.rl_training.update_epochs … update_epochs … 5 and 6"},
		{yaml: "mode: supervised\nclassifier:\n  rl_training: {enabled: true}", want: "c.yaml:3:17: mode … classifier.rl_training.enabled … mode … supervised and supervised_then_rl"},

		// Settings that do not apply.
		{args: []string{"--mode=supervised", "--rl-episodes=3"}, want: "--rl-episodes: … mode supervised; … supervised_then_rl and rl_only"},
		{args: []string{"--mode=rl_only", "--pretrained-model=m", "--epochs=2"}, want: "--epochs: … mode rl_only; … supervised_then_rl and supervised"},
		{args: []string{"--pretrained-model=m"}, want: "--pretrained-model: … mode supervised_then_rl (the default); … supervised and rl_only"},
		{args: []string{"--mode=supervised"}, env: "RLTRAIN_TARGET_KL=1", want: "RLTRAIN_TARGET_KL: … mode supervised; … supervised_then_rl and rl_only"},
		{yaml: "mode: supervised\nrl_episodes: 4", want: "c.yaml:2:1: rl_episodes: … mode supervised (set at c.yaml:1:1); … supervised_then_rl and rl_only"},
		{args: []string{"--target-kl=1"}, env: "RLTRAIN_MODE=supervised", want: "--target-kl: … mode supervised (set by RLTRAIN_MODE); … supervised_then_rl and rl_only"},
		{args: []string{"--text-column=t"}, want: "--text-column: … with --dataset FILE|NAME"},
		{args: []string{"--reward-expr=correct"}, want: "--reward-expr: … with --reward custom"},

		// Settings that need each other.
		{args: []string{"--mode=rl_only"}, want: "mode rl_only needs --pretrained-model DIR, the folder of a finished supervised stage"},
		{args: []string{"--reward-metric=custom"}, want: "--reward-metric: custom needs --reward-expr, such as 'correct - 0.5*(1-correct)*confidence'"},
		{args: []string{"--reward=custom", `--reward-expr=label == 'a' or label == "b"`}, want: "--reward-expr: mixes single and double quotes; use one kind"},
		{args: []string{"--dataset=d.csv", "--text-column=label"}, want: `--label-column: is "label", as text_column is; name two columns`},
		{args: []string{"--buffer-size=8", "--rl-batch-size=16", "--samples-per-prompt=1"}, want: "--buffer-size: 8 is less than rl_batch_size 16: no batch would fill"},
	} {
		t.Run(test.want, func(t *testing.T) {
			inFolder(t, test.yaml)
			if test.yaml != "" {
				test.args = append(test.args, "--config=c.yaml")
			}
			_, err := Load(test.args, strings.Fields(test.env))
			expect.True(t, expect.Names(err, test.want) && (strings.Contains(test.want, " … ") || err.Error() == test.want), "\n got %s\nwant %s", err, test.want)
			var usage *UsageError
			expect.True(t, errors.As(err, &usage), "%T is not a *UsageError", err)
		})
	}
}
