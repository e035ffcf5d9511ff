package main

import (
	_ "embed"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
)

//go:embed shop/shop.py
var shopProgram []byte

//go:embed shop/template.jinja
var shopTemplate []byte

//go:embed shop/tools.json
var shopTools string

// Kinds of questions: of a wording that demonstrations have, and of another.
const (
	shownWording = "wording of the demonstrations"
	otherWording = "another wording"
)

const (
	shopDemonstrations = 200
	shopTrain          = 2000
	shopTest           = 100
)

// shopKinds are the kinds of questions. In a wording, X is an item and N a number of its range; in the expression, a is the
// price of the item. The first wording is that of the demonstrations.
var shopKinds = []struct {
	wordings   []string
	expression string
	low, high  int
	compute    func(a, n int) int
}{
	{[]string{"How much do N Xs cost?", "Find the bill for N Xs.", "A guest takes N Xs. What has to be paid?"}, "N*a", 2, 9, func(a, n int) int { return n * a }},
	{[]string{"I have N coins and buy the X. How many coins are left?", "The X is paid with N coins. What is the change?", "A purse of N coins, minus the X: what remains?"},
		"N-a", 1000, 1999, func(a, n int) int { return n - a }},
	{[]string{"The price of the X rises by N. What is it then?", "Sending the X costs N extra. What is the total?", "Add N to what the X costs."}, "a+N", 11, 99, func(a, n int) int { return a + n }},
	{[]string{"The price of the X falls by N. What is it then?", "With a voucher of N coins, what does the X cost?", "The X is N cheaper today. What is to pay?"},
		"a-N", 2, 49, func(a, n int) int { return a - n }},
	{[]string{"N friends share the price of the X. What does each pay?", "Split the cost of the X by N.", "The X is paid in N equal parts. How much is a part?"},
		"a/N", 2, 4, func(a, n int) int { return a / n }},
}

// shopQuestion is a question with its answer and the steps to it.
type shopQuestion struct {
	text, kind, item, expression string
	price, answer                int
}

// shop is the prices of a seed.
type shop struct {
	rng    *rand.Rand
	items  []string
	prices map[string]int
}

func newShop(seed int) *shop {
	s := &shop{rng: rand.New(rand.NewPCG(46, uint64(seed))), prices: map[string]int{}}
	for _, quality := range []string{"brass", "oak", "silver", "glass", "red", "old", "tall", "round"} {
		for _, thing := range []string{"lamp", "bell", "chair", "bowl", "clock", "drum", "key", "flute"} {
			item := quality + " " + thing
			s.items = append(s.items, item)
			s.prices[item] = 12 * (5 + s.rng.IntN(75)) // whole parts
		}
	}
	return s
}

// ask makes a question; demonstrations have the first wording of its kind.
func (s *shop) ask(demonstration bool) shopQuestion {
	kind := shopKinds[s.rng.IntN(len(shopKinds))]
	wording, q := s.rng.IntN(len(kind.wordings)), shopQuestion{kind: otherWording, item: s.items[s.rng.IntN(len(s.items))]}
	if wording == 0 || demonstration {
		wording, q.kind = 0, shownWording
	}
	n := kind.low + s.rng.IntN(kind.high-kind.low+1)
	q.price = s.prices[q.item]
	q.answer = kind.compute(q.price, n)
	q.text = strings.NewReplacer("N", strconv.Itoa(n), "X", q.item).Replace(kind.wordings[wording])
	q.expression = strings.NewReplacer("N", strconv.Itoa(n), "a", strconv.Itoa(q.price)).Replace(kind.expression)
	return q
}

// demonstration is a conversation that answers the question with the tools.
func (q shopQuestion) demonstration(descriptions []any) dataset.Object {
	turn := func(role, text string) dataset.Object { return dataset.Object(chat.Turn(role, text)) }
	talk := []any{turn(envs.RoleUser, q.text)}
	for _, step := range []struct {
		tool, argument, value string
		result                int
	}{{"lookup", "item", q.item, q.price}, {"calculate", "expression", q.expression, q.answer}} {
		id := "call" + step.tool
		call := tools.Called(id, step.tool, dataset.Object{{Name: step.argument, Value: step.value}})
		talk = append(talk, turn(envs.RoleAssistant, "").With("tool_calls", []any{call}),
			dataset.Object{{Name: "role", Value: envs.RoleTool}, {Name: "tool_call_id", Value: id}, {Name: "content", Value: strconv.Itoa(step.result)}})
	}
	talk = append(talk, turn(envs.RoleAssistant, strconv.Itoa(q.answer)))
	return dataset.Object{{Name: "messages", Value: talk}, {Name: "tools", Value: descriptions}}
}

// shopRow is a question of RL.
type shopRow struct {
	Prompt string `json:"prompt"`
	Answer int    `json:"answer"`
	Kind   string `json:"kind"`
}

// writeShop writes the demonstrations, the questions to train on and those to test on, the tools and the chat template of a
// seed. No question is in two files.
func writeShop(dir, python string, seed int) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	s, seen := newShop(seed), map[string]bool{}
	program, prices, list := filepath.Join(dir, "shop.py"), filepath.Join(dir, "prices.json"), filepath.Join(dir, "tools.json")
	described := strings.NewReplacer("python3", python, "SHOP", program, "TABLE", prices).Replace(shopTools)
	if err := errors.Join(os.MkdirAll(dir, 0o755), outfile.Write(program, shopProgram, 0o644), files.SaveJSON(prices, s.prices),
		outfile.Write(list, []byte(described), 0o644), outfile.Write(filepath.Join(dir, "template.jinja"), shopTemplate, 0o644)); err != nil {
		return err
	}
	offered, err := tools.Read(list)
	if err != nil {
		return err
	}
	var descriptions []any
	for _, tool := range offered {
		descriptions = append(descriptions, tool.Described())
	}
	for _, part := range []struct {
		name string
		n    int
	}{{"demonstrations", shopDemonstrations}, {"train", shopTrain}, {"test", shopTest}} {
		var rows []any
		for len(rows) < part.n {
			q := s.ask(part.name == "demonstrations")
			if seen[q.text] {
				continue
			}
			seen[q.text] = true
			if part.name == "demonstrations" {
				rows = append(rows, q.demonstration(descriptions))
			} else {
				rows = append(rows, shopRow{q.text, q.answer, q.kind})
			}
		}
		if err := writeObjects(filepath.Join(dir, part.name+".jsonl"), rows); err != nil {
			return err
		}
	}
	return nil
}
