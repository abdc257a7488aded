# A file in the style of the Internet Topology Zoo.
graph [
  DateObtained "3/02/11"
  Network "Arpa"
  directed 0
  node [
    id 0
    label "UCLA"
    Longitude -118.24368
    Latitude 34.05223
  ]
  node [
    id 1
    label "Z&#252;rich &quot;ETH&quot;"
    Longitude 8.55
    Latitude 47.36667
  ]
  edge [
    source 0
    target 1
    LinkLabel "50 kbps"
    LinkSpeed "50"
    LinkSpeedUnits "K"
  ]
]
