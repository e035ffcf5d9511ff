package main

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
)

// Distillation: a larger model corrects the student's completions.
const (
	distillation = "distillation"
	distilled    = "--task sum_digits --mode rl_only --pretrained-model STUDENT --algorithm distill --teacher TEACHER " + easySums +
		" --rl-learning-rate 0.002 --num-steps 1500 --eval-every 250 --prompts-per-step 32 --eval-samples 200 --fresh-samples 0"
)

func teacherIn(dir string) string { return filepath.Join(dir, "teacher") }
func studentIn(dir string) string { return filepath.Join(dir, "student") }

// teacher trains the two models of a seed.
func (e *preferenceExperiment) teacher(ctx context.Context, dir string, seed int) error {
	if err := e.imitate(ctx, teacherIn(dir), seed, "--tiny-hidden 64 --max-steps 1400"); err != nil {
		return err
	}
	return e.imitate(ctx, studentIn(dir), seed, "--tiny-hidden 32 --max-steps 700")
}

// distil trains the student, and compares it with its initial model and with the teacher.
func (e *preferenceExperiment) distil(ctx context.Context, dir string, seed int, name, options string) (preferenceRun, error) {
	r := preferenceRun{Way: name, Seed: seed}
	teacher, student, out := filepath.Join(teacherIn(dir), baseFolder), filepath.Join(studentIn(dir), baseFolder), filepath.Join(dir, name)
	args := strings.Fields(strings.NewReplacer("STUDENT", student, "TEACHER", teacher).Replace(options))
	var err error
	if r.CPUSeconds, _, err = command(ctx, e.program, append(args, "--threads", "1", "--seed", strconv.Itoa(seed), "--output-dir", out)...); err != nil {
		return r, err
	}
	taught := filepath.Join(out, "sum_digits_rl")
	if r.Before, r.After, r.Difference, err = e.compare(ctx, filepath.Join(out, "compared.json"), student, taught); err != nil {
		return r, err
	}
	_, best, _, err := e.compare(ctx, filepath.Join(out, "teacher.json"), student, teacher)
	r.Teacher = &best
	return r, err
}

// recovered is the fraction of the gap between student and teacher that training has closed.
func (r preferenceRun) recovered() float64 { return (r.After - r.Before) / (*r.Teacher - r.Before) }
