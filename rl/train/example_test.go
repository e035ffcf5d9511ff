package train_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// Trains a classifier by RL only: it never sees a label, only a reward for right choices. LoadClassifier instead of
// NewClassifier starts from a trained policy.
func ExampleTrain_classifier() {
	ctx := context.Background()
	model, questions, output := exampleFiles() // a folder in the Hugging Face layout, a CSV file, a new folder
	defer os.RemoveAll(output)

	rows := get(dataset.Read(questions, dataset.Columns{Text: "text", Label: "label"}))
	labels := get(dataset.Labels(rows))
	trainRows, validationRows, testRows := dataset.Split(rows, 1)

	p := get(policy.NewClassifier(policy.Config{Dir: model, Labels: labels, R: 8, Alpha: 16, Seed: 1}))
	defer p.Close()
	examples, validation, test := get(p.Encode(trainRows)), get(p.Encode(validationRows)), get(p.Encode(testRows))

	const steps, batch = 5, 16
	rewards := get(reward.ParseLabels("accuracy", labels, reward.Options{}))
	defer rewards.Close()
	source := get(rollout.NewLabels(p, nil, examples, rewards, rollout.LabelsConfig{
		LabelOptions: rollout.LabelOptions{BufferSize: 2000, BatchSize: batch}, Steps: steps, Values: true, Seed: 1,
	}))
	ppo := &algo.PPO{Clip: algo.Clip{Low: 0.2, High: 0.2}, Gamma: 1, Lambda: 0.95, ValueClip: 0.2, ValueCoef: 0.5, Whiten: true}
	result := get(train.Run(ctx, p, source, ppo, train.Config{
		Steps: steps, MinibatchSize: batch, Updates: train.Updates{Epochs: 4}, Seed: 1,
		Optimisation:   train.Optimisation{LearningRate: 5e-3, Schedule: "linear", MaxGradNorm: 1},
		Regularisation: train.Regularisation{EntropyCoef: 0.01},
		Evaluate:       get(evaluate.Labels(p, validation, evaluate.MetricAccuracy, 1, rewards)),
	}, run.Hooks{}))
	evaluation := rl.Evaluate(labels, test.Labels, get(p.Probs(ctx, test.IDs)))
	fmt.Println("better than before:", result.BestStep > 0)
	fmt.Println("over 90 % of the test questions right:", evaluation.Accuracy > 0.9)

	check(p.Save(filepath.Join(output, "classifier"))) // for LoadClassifier, rltrain predict, and PEFT
	// Output:
	// better than before: true
	// over 90 % of the test questions right: true
}

func get[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// exampleFiles makes a folder of a small random encoder with a tokenizer, and 240 texts about animals or law.
func exampleFiles() (model, questions, output string) {
	output = get(os.MkdirTemp("", "example"))
	model, questions = filepath.Join(output, "model"), filepath.Join(output, "questions.csv")
	check(os.Mkdir(model, 0o755))
	from := filepath.Join("..", "..", "torch", "transformers")
	for _, name := range []string{"testdata/encoders/bert_odd/config.json", "testdata/encoders/bert_odd/model.safetensors", "tokenizer/testdata/wordpiece/tokenizer.json", "tokenizer/testdata/wordpiece/tokenizer_config.json"} {
		check(os.WriteFile(filepath.Join(model, filepath.Base(name)), get(os.ReadFile(filepath.Join(from, name))), 0o644))
	}

	rng := rand.New(rand.NewPCG(1, 1))
	subjects := map[string][]string{"animals": {"cat", "dog"}, "law": {"law", "force"}}
	others := strings.Fields("the of is a and what where un happiness running café")
	csv := "text,label\n"
	for i := range 240 {
		label := []string{"animals", "law"}[i%2]
		words := []string{subjects[label][rng.IntN(2)]}
		for range 3 + rng.IntN(5) {
			words = append(words, others[rng.IntN(len(others))])
		}
		rng.Shuffle(len(words), func(i, j int) { words[i], words[j] = words[j], words[i] })
		csv += strings.Join(words, " ") + "?," + label + "\n"
	}
	check(os.WriteFile(questions, []byte(csv), 0o644))
	return model, questions, output
}
