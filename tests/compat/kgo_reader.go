// A franz-go consumer, with its defaults, of a topic whose leader is killed in the middle: `kgo_reader ADDRESS TOPIC HALF ALL`.
//
// It prints a line for each record, "partition offset value". When it has had HALF of them it says "half", and waits for a line
// before it asks for more. Its fetches are small, so that what comes later was not fetched before.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	half, _ := strconv.Atoi(os.Args[3])
	all, _ := strconv.Atoi(os.Args[4])
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ConsumeTopics(os.Args[2]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxBytes(2000),
		kgo.FetchMaxPartitionBytes(500),
		kgo.MaxConcurrentFetches(1),
	}
	if os.Getenv("KGO_LOG") != "" {
		options = append(options, kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelDebug, nil)))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	came := 0
	for came < all {
		patience, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		fetches := client.PollRecords(patience, 10)
		cancel()
		if patience.Err() == context.DeadlineExceeded {
			fmt.Printf("failed: nothing came for a minute after %d records\n", came)
			os.Exit(1)
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			fmt.Fprintf(os.Stderr, "%s/%d: %v\n", topic, partition, err)
		})
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println(record.Partition, record.Offset, string(record.Value))
			if came++; came == half {
				fmt.Println("half")
				bufio.NewReader(os.Stdin).ReadString('\n')
			}
		})
	}
	client.Close()
}
