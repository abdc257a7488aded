graph [
  directed 1
  node [
    id 0
    label "n0"
  ]
  node [
    id 1
    label "n1"
  ]
  node [
    id 2
    place [
      floor 3
    ]
  ]
  edge [
    source 0
    target 1
    capacity "10 Gbit/s"
    delay "3 ms"
    weight 1.5
  ]
  edge [
    source 2
    target 0
    delay 3
  ]
]
