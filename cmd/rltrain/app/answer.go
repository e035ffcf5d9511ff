package app

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/answer"
)

func answerCommand() *cli.Command {
	return &cli.Command{
		Name:      "answer",
		Usage:     "check whether two answers match, and show the rule that decided",
		ArgsUsage: "GOLD ANSWER",
		Description: `Prints "equal" or "different", both answers as parsed, and the rule that decided. With --answer-match math, either
argument may be a full solution: rltrain finds the answer after "the answer is", in \boxed{} and so on.

Put -- before answers that start with a minus: rltrain answer -- -3 '-\frac{6}{2}'`,
		Flags:  []cli.Flag{&cli.StringFlag{Name: "answer-match", Usage: "comparison rule: math, numeric, exact or units", Value: string(answer.Math)}},
		Action: compareAnswers,
	}
}

func compareAnswers(c *cli.Context) error {
	match, err := answer.ParseMatch(c.String("answer-match"))
	if err != nil {
		return shared.UsageErrorf("--answer-match: %v", err)
	}
	gold, text := c.Args().Get(0), c.Args().Get(1)
	verdict, tier := match.Compare(gold, text), answer.ByWhole
	if match == answer.Math {
		verdict, tier = answer.Decide(gold, text)
	}
	word := "different"
	if verdict.Equal {
		word = "equal"
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s\ngold    %s\nanswer  %s\nfound   %s\nrule    %s\n", word, verdict.Gold, verdict.Answer, tier, verdict.Rule)
	return err
}
