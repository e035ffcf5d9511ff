package rl

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
)

// Stream returns the random stream of seed and ids, for example Stream(seed, step, prompt, sample). It is a pure function of its
// arguments, so random numbers do not depend on batch size, worker or earlier numbers. The first 128 bits of the SHA-256 of
// seed and ids, as little-endian words, seed a PCG generator.
func Stream(seed uint64, ids ...uint64) *rand.Rand {
	var fixed [8 * 8]byte
	words := binary.LittleEndian.AppendUint64(fixed[:0], seed)
	for _, id := range ids {
		words = binary.LittleEndian.AppendUint64(words, id)
	}
	key := sha256.Sum256(words)
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:16])))
}

// Purposes of random streams: the first id after the seed. Changing a number changes the results of every seed.
const (
	StreamInit = iota + 1
	StreamShuffle
	StreamDropout
	StreamRollout
	StreamMinibatch
	StreamAction
	StreamReplay
	StreamEvaluation
	StreamDifficulty
	StreamSelection
)
