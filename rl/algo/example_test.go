package algo_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"rltrain/envs/dataset"
	"rltrain/envs/intent"
	"rltrain/rl"
	"rltrain/rl/algo"
)

// Trains a classifier by reinforcement alone: it is never shown a label, only paid where the one that it
// chose is right. A policy that is trained already comes from LoadLabelPolicy instead of NewLabelPolicy.
func ExamplePPO() {
	model, questions, output := exampleFiles() // a folder in the Hugging Face layout, a CSV file, a new folder
	defer os.RemoveAll(output)

	rows := must(dataset.Read(questions, dataset.Columns{Text: "text", Label: "label"}))
	labels := must(dataset.Labels(rows))
	trainRows, validationRows, testRows := dataset.Split(rows, 1)

	policy := must(algo.NewLabelPolicy(algo.PolicyConfig{Dir: model, Labels: labels, R: 8, Alpha: 16, Seed: 1}))
	defer policy.Close()
	train, validation, test := must(policy.Encode(trainRows)), must(policy.Encode(validationRows)), must(policy.Encode(testRows))

	rewards := must(intent.ParseRewards("accuracy", labels))
	result := must(algo.PPO(context.Background(), policy, train, validation, rewards, algo.PPOConfig{
		Episodes: 5, RolloutSize: 2000, BatchSize: 16, UpdateEpochs: 4, LearningRate: 5e-3,
		Gamma: 0.99, Lambda: 0.95, ClipLow: 0.2, ClipHigh: 0.2, ValueClip: 0.2, ValueCoef: 0.5, EntropyCoef: 0.01,
		Whiten: true, MaxGradNorm: 1, Metric: algo.MetricAccuracy, Seed: 1,
	}, algo.Hooks{}))
	evaluation := rl.Evaluate(labels, test.Labels, must(policy.Probs(context.Background(), test.IDs)))
	fmt.Println("better than before:", result.Best.Accuracy > result.Before.Accuracy)
	fmt.Println("over 90 % of the test questions right:", evaluation.Accuracy > 0.9)

	check(policy.Save(filepath.Join(output, "classifier"))) // for LoadLabelPolicy, rltrain predict, and PEFT
	// Output:
	// better than before: true
	// over 90 % of the test questions right: true
}

func must[T any](value T, err error) T {
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
	output = must(os.MkdirTemp("", "example"))
	model, questions = filepath.Join(output, "model"), filepath.Join(output, "questions.csv")
	check(os.Mkdir(model, 0o755))
	testdata := filepath.Join("..", "..", "torch", "transformers", "testdata")
	for _, name := range []string{"bert/config.json", "bert/model.safetensors", "wordpiece/tokenizer.json", "wordpiece/tokenizer_config.json"} {
		check(os.WriteFile(filepath.Join(model, filepath.Base(name)), must(os.ReadFile(filepath.Join(testdata, name))), 0o644))
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
